// Reads the header field by field. Each length is checked against the rest of the file before it is used.
#include "gguf.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "element_type.h"
#include "error.h"
#include "sequential_reader.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

constexpr std::string_view magic = "GGUF";
constexpr std::uint32_t default_alignment = 32;
constexpr std::uint32_t max_dimensions = 4;
constexpr std::uint32_t max_array_depth = 16;
constexpr std::uint64_t max_kept_text_bytes = 4096;

// The fewest bytes of one entry of each list. Counts are checked against them.
constexpr std::uint64_t least_metadata_bytes = 8 + 4 + 1;
constexpr std::uint64_t least_tensor_bytes = 8 + 4 + 4 + 8;
constexpr std::uint64_t least_array_bytes = 4 + 8;

enum ValueType : std::uint32_t {
    type_uint8 = 0,
    type_int8,
    type_uint16,
    type_int16,
    type_uint32,
    type_int32,
    type_float32,
    type_bool,
    type_string,
    type_array,
    type_uint64,
    type_int64,
    type_float64,
    type_count
};

// The bytes of one value; 0 if the size varies.
constexpr std::array<std::uint8_t, type_count> value_bytes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// The name of a part of the header for messages. The text is made only when it is needed, because a million tensors
// have ten million parts.
struct Field {
    std::string_view kind;             // "tensor count", "metadata", "tensor"
    std::string_view name = {};        // the name of the entry
    std::string_view member = {};      // the member of the entry
    std::uint64_t number = no_number;  // the number of the entry

    static constexpr std::uint64_t no_number = std::numeric_limits<std::uint64_t>::max();

    std::string text() const {
        std::string out(kind);
        if (number != no_number)
            out += "[" + std::to_string(number) + "]";
        else if (name.data() != nullptr)
            out += " " + in_quotes(name);
        if (!member.empty()) {
            out += ": ";
            out += member;
        }
        return out;
    }
};

bool is_integer(std::uint32_t type) { return type <= type_int32 || type == type_uint64 || type == type_int64; }

class HeaderReader {
public:
    HeaderReader(ByteSource& source, const ReadOptions& options, Model& model)
        : source_(source), limit_(options.max_header_bytes), model_(model), reader_(source, 0, source.size()) {}

    GgufSplit read();

private:
    [[noreturn]] void fail(const Field& field, std::string_view message) const {
        throw ModelError(source_.name(), field.text(), message);
    }
    Field tensor_field(std::string_view member) const { return {"tensor", name_, member}; }

    // Throws if fewer than `bytes` bytes are left, or if they exceed the limit.
    void need(std::uint64_t bytes, const Field& field);
    // Throws if the rest of the file is too short for `count` entries of at least `least_bytes` bytes.
    void need_entries(std::uint64_t count, std::uint64_t least_bytes, const Field& field);
    std::uint64_t integer(std::size_t bytes, const Field& field);
    std::uint32_t u32(const Field& field) { return static_cast<std::uint32_t>(integer(4, field)); }
    std::uint64_t u64(const Field& field) { return integer(8, field); }
    // Reads a length and as many bytes, at most `most`.
    void read_text(std::string& to, std::uint64_t most, const Field& field);

    void read_preamble();
    void read_metadata();
    void read_value(const std::string& key, std::uint32_t type, const Field& field);
    void use_integer(const std::string& key, std::uint32_t type, const Field& field);
    void use_text(const std::string& key, const Field& field);
    void skip_array(std::uint32_t depth, const Field& field);
    void skip_text(const Field& field);
    void read_tensors();
    Tensor read_tensor(std::uint64_t number);
    void place_tensors(std::size_t first);

    ByteSource& source_;
    std::uint64_t limit_;
    Model& model_;
    SequentialReader reader_;
    std::uint32_t file_ = 0;
    std::uint64_t tensor_count_ = 0;
    std::uint64_t metadata_count_ = 0;
    std::uint64_t alignment_ = default_alignment;
    GgufSplit split_;
    std::string name_;
};

void HeaderReader::need(std::uint64_t bytes, const Field& field) {
    if (bytes > reader_.remaining()) {
        fail(field, "takes " + std::to_string(bytes) + " bytes at byte " + std::to_string(reader_.position()) +
                        ", but the file has only " + std::to_string(reader_.remaining()) +
                        " more: truncated, or an earlier length is wrong");
    }
    if (reader_.position() + bytes > limit_)
        fail(field, "makes the header longer than the limit on header bytes, " + std::to_string(limit_));
}

void HeaderReader::need_entries(std::uint64_t count, std::uint64_t least_bytes, const Field& field) {
    if (count > reader_.remaining() / least_bytes) {
        fail(field, "says " + std::to_string(count) + ", but only " + std::to_string(reader_.remaining()) +
                        " bytes follow in the file");
    }
}

std::uint64_t HeaderReader::integer(std::size_t bytes, const Field& field) {
    need(bytes, field);
    std::array<unsigned char, 8> raw{};
    reader_.read(raw.data(), bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | raw[i];
    return value;
}

void HeaderReader::read_text(std::string& to, std::uint64_t most, const Field& field) {
    const std::uint64_t bytes = u64(field);
    need(bytes, field);
    if (bytes > most)
        fail(field, "has " + std::to_string(bytes) + " bytes; at most " + std::to_string(most) + " are allowed");
    to.resize(static_cast<std::size_t>(bytes));
    reader_.read(to.data(), to.size());
}

void HeaderReader::skip_text(const Field& field) {
    const std::uint64_t bytes = u64(field);
    need(bytes, field);
    reader_.skip(bytes);
}

void HeaderReader::read_preamble() {
    if (source_.size() == 0) fail({"file"}, "is empty");
    std::array<char, 4> found{};
    need(found.size(), {"magic"});
    reader_.read(found.data(), found.size());
    if (std::string_view(found.data(), found.size()) != magic)
        fail({"magic"}, "is " + in_quotes({found.data(), found.size()}) + ", not 'GGUF'");
    const std::uint32_t version = u32({"version"});
    if (version != 0 && (version & 0xffff) == 0)
        fail({"version"}, "shows a big-endian file; only little-endian ones are supported");
    if (version != 2 && version != 3)
        fail({"version"}, "is " + std::to_string(version) + "; only 2 and 3 are supported");
    tensor_count_ = u64({"tensor count"});
    metadata_count_ = u64({"metadata count"});
    need_entries(tensor_count_, least_tensor_bytes, {"tensor count"});
    need_entries(metadata_count_, least_metadata_bytes, {"metadata count"});
}

void HeaderReader::read_metadata() {
    Arena arena;
    std::vector<std::string_view> keys;
    std::string key;
    for (std::uint64_t i = 0; i < metadata_count_; ++i) {
        const Field place{"metadata", {}, "key", i};
        read_text(key, max_name_bytes, place);
        if (key.empty() || !is_utf8(key)) fail(place, key.empty() ? "is empty" : in_quotes(key) + " is not UTF-8");
        keys.push_back(arena.copy(std::string_view(key)));
        const Field field{"metadata", key};
        const std::uint32_t type = u32(field);
        if (type >= type_count) fail(field, "has the unknown value type " + std::to_string(type));
        read_value(key, type, field);
    }
    find_equal_names(
        keys.size(), [&](std::size_t i) { return keys[i]; },
        [&](std::size_t one, std::size_t two) {
            fail({"metadata", keys[two]},
                 "occurs twice, as number " + std::to_string(one) + " and as number " + std::to_string(two));
        });
}

void HeaderReader::read_value(const std::string& key, std::uint32_t type, const Field& field) {
    if (is_integer(type)) {
        use_integer(key, type, field);
    } else if (type == type_string) {
        use_text(key, field);
    } else if (key == "general.alignment") {
        fail(field, "is not an integer");
    } else if (type == type_array) {
        skip_array(1, field);
    } else {
        need(value_bytes[type], field);
        reader_.skip(value_bytes[type]);
    }
}

void HeaderReader::use_integer(const std::string& key, std::uint32_t type, const Field& field) {
    const std::uint64_t value = integer(value_bytes[type], field);
    if (key == "general.alignment") {
        const bool power_of_two = value != 0 && (value & (value - 1)) == 0;
        if (type != type_uint32 || !power_of_two) {
            fail(field, type != type_uint32 ? "is not a 32-bit unsigned integer"
                                            : "is " + std::to_string(value) + ", which is not a power of two");
        }
        alignment_ = value;
    } else if (key == "split.no") {
        split_.number = value;
    } else if (key == "split.count") {
        split_.count = value;
    }
    const bool interesting = key.rfind("general.", 0) == 0 || key.ends_with(".block_count");
    const bool is_signed = type == type_int8 || type == type_int16 || type == type_int32 || type == type_int64;
    if (interesting && !is_signed) model_.note(key, std::to_string(value));
}

void HeaderReader::use_text(const std::string& key, const Field& field) {
    if (key == "general.alignment") fail(field, "is not an integer");
    const std::uint64_t bytes = u64(field);
    need(bytes, field);
    if (key.rfind("general.", 0) != 0 || bytes > max_kept_text_bytes) {
        reader_.skip(bytes);
        return;
    }
    std::string text(static_cast<std::size_t>(bytes), '\0');
    reader_.read(text.data(), text.size());
    model_.note(key, text);
}

void HeaderReader::skip_array(std::uint32_t depth, const Field& field) {
    if (depth > max_array_depth) fail(field, "nests arrays deeper than " + std::to_string(max_array_depth) + " levels");
    const std::uint32_t type = u32(field);
    const std::uint64_t count = u64(field);
    if (type >= type_count) fail(field, "is an array of the unknown value type " + std::to_string(type));
    const std::uint64_t least = type == type_string ? 8 : type == type_array ? least_array_bytes : value_bytes[type];
    need_entries(count, least, field);
    if (type == type_string) {
        for (std::uint64_t i = 0; i < count; ++i) skip_text(field);
    } else if (type == type_array) {
        for (std::uint64_t i = 0; i < count; ++i) skip_array(depth + 1, field);
    } else {
        need(count * least, field);
        reader_.skip(count * least);
    }
}

Tensor HeaderReader::read_tensor(std::uint64_t number) {
    const Field place{"tensor", {}, "name", number};
    read_text(name_, max_name_bytes, place);
    if (!is_utf8(name_)) fail(place, in_quotes(name_) + " is not UTF-8");
    const std::uint32_t rank = u32(tensor_field("dimensions"));
    if (rank > max_dimensions) {
        fail(tensor_field("dimensions"),
             "are " + std::to_string(rank) + "; at most " + std::to_string(max_dimensions) + " are allowed");
    }
    // The file stores the innermost dimension first.
    std::array<std::uint64_t, max_dimensions> shape{};
    for (std::uint32_t i = rank; i-- > 0;) {
        shape[i] = u64(tensor_field("dimensions"));
        if (shape[i] > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            fail(tensor_field("dimensions"), "hold " + std::to_string(shape[i]) + ", which does not fit in 63 bits");
    }
    const std::span<const std::uint64_t> dimensions(shape.data(), rank);
    const std::uint32_t type_number = u32(tensor_field("type"));
    const ElementType* type = gguf_type(type_number);
    if (type == nullptr) {
        const std::string_view removed = removed_gguf_type(type_number);
        fail(tensor_field("type"),
             "is " + std::to_string(type_number) +
                 (removed.empty() ? std::string(", which is not a known type")
                                  : " (" + std::string(removed) + "), which the format no longer has"));
    }
    const TensorSize size = tensor_size(*type, dimensions);
    if (!size.problem.empty()) fail(tensor_field("dimensions"), size.problem);
    Tensor tensor;
    tensor.offset = u64(tensor_field("offset"));
    if (tensor.offset % alignment_ != 0) {
        fail(tensor_field("offset"), "is " + std::to_string(tensor.offset) +
                                         ", which is not a multiple of the alignment, " + std::to_string(alignment_));
    }
    tensor.name = model_.arena.copy(std::string_view(name_));
    tensor.dtype = type->name;
    tensor.shape = model_.arena.copy(dimensions);
    tensor.file = file_;
    tensor.bytes = size.bytes;
    return tensor;
}

void HeaderReader::read_tensors() {
    need_entries(tensor_count_, least_tensor_bytes, {"tensor count"});
    const std::size_t first = model_.tensors.size();
    for (std::uint64_t i = 0; i < tensor_count_; ++i) model_.tensors.push_back(read_tensor(i));
    check_names(model_, first);
    place_tensors(first);
    check_layout(model_, first, true);
    add_bytes(model_, first);
}

// Converts the offsets from offsets in the data of the tensors to offsets in the file.
void HeaderReader::place_tensors(std::size_t first) {
    const std::uint64_t data_offset = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    const std::uint64_t data_bytes = source_.size() > data_offset ? source_.size() - data_offset : 0;
    model_.files[file_].data_offset = std::min(data_offset, source_.size());
    for (std::size_t i = first; i < model_.tensors.size(); ++i) {
        Tensor& tensor = model_.tensors[i];
        if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
            fail({"tensor", tensor.name, "offset"}, "is " + std::to_string(tensor.offset) + " for " +
                                                        std::to_string(tensor.bytes) + " bytes, but the file holds " +
                                                        std::to_string(data_bytes) +
                                                        " bytes of data: truncated, or wrong");
        }
        tensor.offset += model_.files[file_].data_offset;
    }
}

GgufSplit HeaderReader::read() {
    read_preamble();
    file_ = static_cast<std::uint32_t>(model_.files.size());
    model_.format = Format::gguf;
    model_.files.push_back({source_.name(), source_.size(), source_.stamp(), 0});
    read_metadata();
    read_tensors();
    return split_;
}

}  // namespace

GgufSplit read_gguf(ByteSource& source, const ReadOptions& options, Model& model) {
    return HeaderReader(source, options, model).read();
}

bool is_gguf(ByteSource& source) {
    std::array<char, 4> lead{};
    if (source.size() < lead.size()) return false;
    source.read(0, lead);
    return std::string_view(lead.data(), lead.size()) == magic;
}

}  // namespace stagehand::cli::model
