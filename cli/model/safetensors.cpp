// Reads the length before the header, the header, and checks the properties of all tensors together. The header:
//   { "__metadata__": { key: text... },
//     tensor: { "dtype": text, "shape": [n...], "data_offsets": [n, n] }... }
#include "safetensors.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checks.h"
#include "element_type.h"
#include "error.h"
#include "json_schema.h"
#include "packed_description.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

// Guesses the kind of a file that begins with these bytes and is not a safetensors file.
std::string_view foreign_kind(std::string_view lead) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kinds{{
        {"version https://git-lfs", "this is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'"},
        {"GGUF", "this is a GGUF file"},
        {"PK\x03\x04", "this is a zip archive, perhaps a PyTorch checkpoint: convert it to safetensors"},
        {"\x80\x02", "this is a Python pickle: convert it to safetensors"},
        {"\x89HDF", "this is an HDF5 file: convert it to safetensors"},
        {"<", "this is an HTML or XML page"},
        {"{", "this is JSON; a shard index has a name that ends in .index.json"},
    }};
    for (const auto& [magic, kind] : kinds)
        if (lead.substr(0, magic.size()) == magic) return kind;
    return "not a safetensors file, or truncated";
}

// Reads and checks the length at the beginning of a file.
std::uint64_t read_header_length(ByteSource& source, const ReadOptions& options) {
    constexpr std::string_view field = "header length";
    const std::uint64_t size = source.size();
    if (size == 0) throw ModelError(source.name(), "file", "is empty");
    std::array<char, 32> lead{};
    const std::size_t lead_bytes = size < lead.size() ? static_cast<std::size_t>(size) : lead.size();
    source.read(0, {lead.data(), lead_bytes});
    const std::string_view lead_text(lead.data(), lead_bytes);
    if (size < 8) {
        throw ModelError(
            source.name(), field,
            "takes 8 bytes, but the file has " + std::to_string(size) + ": " + std::string(foreign_kind(lead_text)));
    }
    std::uint64_t length = 0;
    for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(lead[i]);
    if (length == 0) throw ModelError(source.name(), field, "is zero");
    if (length > size - 8) {
        throw ModelError(source.name(), field,
                         "says " + std::to_string(length) + ", but only " + std::to_string(size - 8) +
                             " bytes follow: " + std::string(foreign_kind(lead_text)));
    }
    if (length > options.max_header_bytes) {
        throw ModelError(source.name(), field,
                         "says " + std::to_string(length) + ", more than the limit on header bytes, " +
                             std::to_string(options.max_header_bytes));
    }
    return length;
}

// Adds a tensor to the model at the end of its description, after checking that the description is complete and the
// bytes are in the file.
class Header {
public:
    Header(Model& model, std::uint32_t file) : model_(model), file_(file) {}
    Header(const Header&) = delete;
    Header& operator=(const Header&) = delete;

    const JsonSchema& schema() const { return top_; }

private:
    static constexpr std::string_view metadata_field = "__metadata__";
    static constexpr std::array<std::string_view, 3> members{"dtype", "shape", "data_offsets"};

    [[noreturn]] void fail(std::string_view field, std::string_view message) const {
        throw ModelError(model_.files[file_].path, field, message);
    }
    [[noreturn]] void fail_tensor(std::string_view member, std::string_view message) const {
        fail(tensor_field(name_, member), message);
    }
    // The place of a member of the tensor that is read.
    std::function<std::string()> in_tensor(std::string_view member = {}) const {
        return [this, member] { return tensor_field(name_, member); };
    }

    const JsonSchema& member_of_header(std::string_view name) {
        if (name == metadata_field) {
            if (std::exchange(saw_metadata_, true)) fail(metadata_field, "occurs twice in the header");
            return metadata_;
        }
        name_.assign(name);
        if (name.size() > max_name_bytes)
            fail_tensor({}, "has a name longer than " + std::to_string(max_name_bytes) + " bytes");
        return tensor_;
    }

    const JsonSchema& member_of_tensor(std::string_view name) {
        const auto at = static_cast<std::size_t>(std::find(members.begin(), members.end(), name) - members.begin());
        if (at == members.size()) return skipped_;
        if (std::exchange(seen_[at], true)) fail_tensor(name, "occurs twice");
        const std::array schemas{&dtype_, &shape_, &offsets_};
        return *schemas[at];
    }

    void begin_tensor() {
        seen_ = {};
        lengths_.clear();
        ends_.clear();
    }
    void finish_tensor();

    Model& model_;
    const std::uint32_t file_;
    bool saw_metadata_ = false;
    std::string metadata_key_;

    std::string name_;  // the tensor that is read, and what is known of it
    std::array<bool, 3> seen_{};
    const ElementType* type_ = nullptr;
    std::vector<std::uint64_t> lengths_, ends_;

    const JsonSchema skipped_{.field = in_tensor()};
    const JsonSchema dtype_{.kind = JsonKind::string,
                            .wanted = "be a string",
                            .field = in_tensor("dtype"),
                            .text = [this](std::string_view text) {
                                type_ = safetensors_type(text);
                                if (type_ == nullptr)
                                    fail_tensor("dtype", "is " + in_quotes(text) + ", which is not a known type");
                            }};
    const JsonSchema length_{.kind = JsonKind::natural_number,
                             .wanted = "hold unsigned 64-bit integers",
                             .field = in_tensor("shape"),
                             .number = [this](std::uint64_t value) { lengths_.push_back(value); }};
    const JsonSchema shape_{
        .kind = JsonKind::array, .wanted = "be an array of numbers", .field = in_tensor("shape"), .item = &length_};
    const JsonSchema offset_{.kind = JsonKind::natural_number,
                             .wanted = "hold unsigned 64-bit integers",
                             .field = in_tensor("data_offsets"),
                             .number = [this](std::uint64_t value) { ends_.push_back(value); }};
    const JsonSchema offsets_{
        .kind = JsonKind::array,
        .wanted = "be an array of two numbers",
        .field = in_tensor("data_offsets"),
        .end =
            [this] {
                if (ends_.size() != 2)
                    fail_tensor("data_offsets", "must hold two numbers, but holds " + std::to_string(ends_.size()));
            },
        .item = &offset_};
    const JsonSchema tensor_{
        .kind = JsonKind::object,
        .wanted = "be an object with dtype, shape and data_offsets",
        .field = in_tensor(),
        .begin = [this] { begin_tensor(); },
        .end = [this] { finish_tensor(); },
        .member = [this](std::string_view name) -> const JsonSchema& { return member_of_tensor(name); }};
    const JsonSchema fact_{.kind = JsonKind::string,
                           .wanted = "be a string",
                           .field = [this] { return std::string(metadata_field) + ": " + in_quotes(metadata_key_); },
                           .text =
                               [this](std::string_view text) {
                                   if (metadata_key_ != packed_key) model_.note(metadata_key_, text);
                                   model_.files[file_].metadata.emplace_back(metadata_key_, text);
                               }};
    const JsonSchema metadata_{.kind = JsonKind::object,
                               .wanted = "be an object of strings",
                               .field = [] { return std::string(metadata_field); },
                               .member = [this](std::string_view name) -> const JsonSchema& {
                                   metadata_key_.assign(name);
                                   return fact_;
                               },
                               .may_be_null = true};
    const JsonSchema top_{
        .kind = JsonKind::object,
        .wanted = "be a JSON object",
        .field = [] { return std::string("header"); },
        .member = [this](std::string_view name) -> const JsonSchema& { return member_of_header(name); }};
};

void Header::finish_tensor() {
    for (std::size_t i = 0; i < members.size(); ++i)
        if (!seen_[i]) fail_tensor(members[i], "is missing");
    const ModelFile& file = model_.files[file_];
    const std::uint64_t data_bytes = file.bytes - file.data_offset;
    const std::uint64_t begin = ends_[0], end = ends_[1];
    if (begin > end) {
        fail_tensor("data_offsets",
                    "begin at " + std::to_string(begin) + ", after their end at " + std::to_string(end));
    }
    if (end > data_bytes) {
        fail_tensor("data_offsets", "end at " + std::to_string(end) + ", but the file holds " +
                                        std::to_string(data_bytes) + " bytes of data: truncated, or wrong");
    }
    const TensorSize size = tensor_size(*type_, lengths_);
    if (!size.problem.empty()) fail_tensor("shape", size.problem);
    if (size.bytes != end - begin) {
        fail_tensor("data_offsets", "span " + std::to_string(end - begin) + " bytes, but dtype and shape make " +
                                        std::to_string(size.bytes));
    }
    Tensor tensor;
    tensor.name = model_.arena.copy(std::string_view(name_));
    tensor.dtype = type_->name;
    tensor.shape = model_.arena.copy(std::span<const std::uint64_t>(lengths_));
    tensor.file = file_;
    tensor.offset = file.data_offset + begin;
    tensor.bytes = size.bytes;
    model_.tensors.push_back(tensor);
}

}  // namespace

void read_safetensors(ByteSource& source, const ReadOptions& options, Model& model) {
    const std::uint64_t length = read_header_length(source, options);
    const std::size_t first = model.tensors.size();
    const auto file = static_cast<std::uint32_t>(model.files.size());
    model.format = Format::safetensors;
    model.files.push_back({source.name(), source.size(), source.stamp(), 8 + length});

    read_json(source, 8, length, "header", Header(model, file).schema());
    check_names(model, first);
    check_layout(model, first, false);
    std::uint64_t covered = 0;
    for (std::size_t i = first; i < model.tensors.size(); ++i) covered += model.tensors[i].bytes;
    const std::uint64_t data_bytes = source.size() - 8 - length;
    if (covered != data_bytes) {
        throw ModelError(source.name(), "data_offsets",
                         "end at " + std::to_string(covered) + ", but the file holds " + std::to_string(data_bytes) +
                             " bytes of data");
    }
    for (const auto& [key, value] : model.files.back().metadata)
        if (key == packed_key) apply_description(value, source, first, model);
    add_bytes(model, first);
}

}  // namespace stagehand::cli::model
