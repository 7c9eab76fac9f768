// Fuzzes the reader of safetensors headers. The first byte of the input chooses what the rest is:
//   even: a file;
//   odd:  two bytes of data size, then a header without its length, so that edits need not keep that right.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "check_model.h"
#include "model/byte_source.h"
#include "model/safetensors.h"

namespace {

using namespace stagehand::cli::model;

std::string file_of(std::string_view input) {
    if (input.size() < 3 || input[0] % 2 == 0) {
        return std::string(input.substr(input.empty() ? 0 : 1));
    }
    const std::size_t data_bytes =
        static_cast<unsigned char>(input[1]) | static_cast<std::size_t>(static_cast<unsigned char>(input[2])) << 8;
    const std::string_view header = input.substr(3);
    std::string file;
    for (std::size_t i = 0; i < 8; ++i) {
        file += static_cast<char>(header.size() >> (8 * i) & 0xff);
    }
    return file.append(header).append(data_bytes, 'd');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string file = file_of({reinterpret_cast<const char*>(data), size});
    MemorySource source("input", file);
    try {
        Model model;
        read_safetensors(source, {}, model);
        fuzz::check_model(model, file.size());
    } catch (const ModelError& error) {
        fuzz::require(!error.field().empty() && !error.message().empty());
    }
    return 0;
}
