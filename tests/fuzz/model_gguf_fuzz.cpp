// Fuzzes the reader of GGUF headers. The input is a file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "check_model.h"
#include "model/byte_source.h"
#include "model/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace stagehand::cli::model;
    MemorySource source("input", {reinterpret_cast<const char*>(data), size});
    try {
        Model model;
        read_gguf(source, {}, model);
        fuzz::check_model(model, size);
    } catch (const ModelError& error) {
        fuzz::require(!error.field().empty() && !error.message().empty());
    }
    return 0;
}
