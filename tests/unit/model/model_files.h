// Makes model files for tests: safetensors from the text of a header, GGUF field by field, and a folder that is removed
// at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "model/error.h"
#include "model/model.h"

namespace stagehand::cli::model::test {

constexpr std::uint64_t max64 = 0xffffffffffffffff;
constexpr std::uint32_t f32 = 0;  // the type of a GGUF tensor

// Returns `value` as `bytes` bytes, little-endian.
std::string little(std::uint64_t value, std::size_t bytes);

// Length, header, and `data_bytes` bytes of data that count up from 0.
std::string safetensors(std::string_view header, std::size_t data_bytes = 0);

// {"NAME":{"dtype":"DTYPE","shape":SHAPE,"data_offsets":[BEGIN,END]}, without the outer braces.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape, std::uint64_t begin,
                  std::uint64_t end);

// The first bytes of a packed tensor of one chunk, which are all that readers of model files look at.
std::string packed_head(std::uint8_t format, std::uint64_t contents_bytes, std::uint64_t frame_bytes);

// A GGUF file, field by field in the order of the calls.
class Gguf {
public:
    enum Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

    std::uint32_t version = 3;
    std::string magic = "GGUF";
    std::uint64_t extra_tensors = 0;  // added to the counts that the file claims
    std::uint64_t extra_metadata = 0;

    // One metadata entry whose value is `value` as it stands.
    Gguf& raw(std::string_view key, std::uint32_t type, std::string_view value);
    Gguf& integer(std::string_view key, std::uint32_t type, std::uint64_t value, std::size_t bytes);
    Gguf& text(std::string_view key, std::string_view value);
    // Dimensions as GGUF stores them: the innermost first.
    Gguf& tensor(std::string_view name, std::initializer_list<std::uint64_t> dimensions, std::uint32_t type,
                 std::uint64_t offset);
    Gguf& raw_tensor(std::string_view description);

    // The header, padding to `alignment`, and `data_bytes` bytes that count up from 0.
    std::string file(std::size_t data_bytes = 0, std::size_t alignment = 32) const;
    std::string header() const;

    static std::string text_value(std::string_view value);

private:
    std::uint64_t tensor_count_ = 0;
    std::uint64_t metadata_count_ = 0;
    std::string metadata_;
    std::string tensors_;
};

// A folder in the system's temporary folder. It is removed with everything in it.
class TemporaryFolder {
public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string path(std::string_view name = {}) const;
    // Makes folders on the way; returns the path.
    std::string write(std::string_view name, std::string_view content) const;

private:
    std::string path_;
};

// Bytes in memory, read as a file of that format would be.
Model read_safetensors_bytes(std::string_view bytes, const ReadOptions& options = {});
Model read_gguf_bytes(std::string_view bytes, const ReadOptions& options = {});

// A piece of bad input, and what the error must name. `field` is equal to the error's field, `message` a part
// of its message.
struct BadInput {
    std::string name;  // of the case: letters and digits
    std::string bytes;
    std::string field;
    std::string message;
};
void PrintTo(const BadInput& input, std::ostream* out);

// Returns the ModelError that `action` throws. The test fails and the result is empty if it throws none.
ModelError error_of(const std::function<void()>& action);

// Returns the tensor of that name. The test fails if there is none.
Tensor tensor_named(const Model& model, std::string_view name);

}  // namespace stagehand::cli::model::test
