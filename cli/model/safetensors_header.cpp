// The transitions of the state machine. An event that no transition expects is an error that names the expected value.
#include "safetensors_header.h"

#include "error.h"
#include "text.h"

namespace stagehand::cli::model {

namespace {

constexpr std::string_view header_field = "header";
constexpr std::string_view metadata_field = "__metadata__";

}  // namespace

void SafetensorsHeader::fail(std::string_view field, std::string_view message) const {
    throw ModelError(model_.files[file_].path, field, message);
}

void SafetensorsHeader::unexpected(JsonKind found) const {
    const auto message = [&](std::string_view wanted) {
        return "must be " + std::string(wanted) + ", but is " + std::string(to_string(found));
    };
    switch (state_) {
        case State::tensor_value:
            fail_tensor({}, message("an object with dtype, shape and data_offsets"));
        case State::dtype:
            fail_tensor("dtype", message("a string"));
        case State::shape:
            fail_tensor("shape", message("an array of numbers"));
        case State::shape_items:
            fail_tensor("shape", "must hold unsigned 64-bit integers, but holds " + std::string(to_string(found)));
        case State::offsets:
            fail_tensor("data_offsets", message("an array of two numbers"));
        case State::offsets_items:
            fail_tensor("data_offsets",
                        "must hold unsigned 64-bit integers, but holds " + std::string(to_string(found)));
        case State::metadata_value:
            fail(metadata_field, message("an object of strings"));
        case State::metadata_item:
            fail(std::string(metadata_field) + ": " + in_quotes(metadata_key_), message("a string"));
        default:
            fail(header_field, message("a JSON object"));
    }
}

void SafetensorsHeader::enter_skipped() {
    if (++skipped_depth_ > max_skipped_depth)
        fail_tensor({}, "is nested deeper than " + std::to_string(max_skipped_depth) + " levels");
}

void SafetensorsHeader::leave_skipped() {
    if (--skipped_depth_ == 0) state_ = State::tensor;
}

void SafetensorsHeader::start_object() {
    switch (state_) {
        case State::before:
            state_ = State::top;
            return;
        case State::tensor_value:
            state_ = State::tensor;
            type_ = nullptr;
            shape_.clear();
            offset_count_ = 0;
            saw_dtype_ = saw_shape_ = saw_offsets_ = false;
            return;
        case State::metadata_value:
            state_ = State::metadata;
            return;
        case State::skipped:
            enter_skipped();
            return;
        default:
            unexpected(JsonKind::object);
    }
}

void SafetensorsHeader::end_object() {
    switch (state_) {
        case State::tensor:
            finish_tensor();
            state_ = State::top;
            return;
        case State::metadata:
            state_ = State::top;
            return;
        case State::skipped:
            leave_skipped();
            return;
        default:
            state_ = State::after;
    }
}

void SafetensorsHeader::start_array() {
    switch (state_) {
        case State::shape:
            state_ = State::shape_items;
            return;
        case State::offsets:
            state_ = State::offsets_items;
            return;
        case State::skipped:
            enter_skipped();
            return;
        default:
            unexpected(JsonKind::array);
    }
}

void SafetensorsHeader::end_array() {
    if (state_ == State::skipped) {
        leave_skipped();
        return;
    }
    if (state_ == State::offsets_items && offset_count_ != 2)
        fail_tensor("data_offsets", "must hold two numbers, but holds " + std::to_string(offset_count_));
    state_ = State::tensor;
}

void SafetensorsHeader::key(std::string_view name) {
    switch (state_) {
        case State::top:
            if (name == metadata_field) {
                if (saw_metadata_) fail(metadata_field, "occurs twice in the header");
                saw_metadata_ = true;
                state_ = State::metadata_value;
                return;
            }
            name_.assign(name);
            if (name.size() > max_name_bytes)
                fail_tensor({}, "has a name longer than " + std::to_string(max_name_bytes) + " bytes");
            state_ = State::tensor_value;
            return;
        case State::tensor:
            member(name);
            return;
        case State::metadata:
            metadata_key_.assign(name);
            state_ = State::metadata_item;
            return;
        default:
            return;  // inside a skipped member
    }
}

void SafetensorsHeader::once(bool& seen, std::string_view member) {
    if (seen) fail_tensor(member, "occurs twice");
    seen = true;
}

void SafetensorsHeader::member(std::string_view name) {
    if (name == "dtype") {
        once(saw_dtype_, name);
        state_ = State::dtype;
    } else if (name == "shape") {
        once(saw_shape_, name);
        state_ = State::shape;
    } else if (name == "data_offsets") {
        once(saw_offsets_, name);
        state_ = State::offsets;
    } else {
        state_ = State::skipped;
        skipped_depth_ = 0;
    }
}

void SafetensorsHeader::scalar(const JsonScalar& value) {
    switch (state_) {
        case State::dtype:
            if (value.kind != JsonKind::string) unexpected(value.kind);
            type_ = safetensors_type(value.text);
            if (type_ == nullptr) fail_tensor("dtype", "is " + in_quotes(value.text) + ", which is not a known type");
            state_ = State::tensor;
            return;
        case State::shape_items:
            if (value.kind != JsonKind::natural_number) unexpected(value.kind);
            shape_.push_back(value.number);
            return;
        case State::offsets_items:
            if (value.kind != JsonKind::natural_number) unexpected(value.kind);
            if (offset_count_ < 2) offsets_[offset_count_] = value.number;
            ++offset_count_;
            return;
        case State::metadata_item:
            if (value.kind != JsonKind::string) unexpected(value.kind);
            if (metadata_key_ != packed_key) model_.note(metadata_key_, value.text);
            model_.files[file_].metadata.emplace_back(metadata_key_, value.text);
            state_ = State::metadata;
            return;
        case State::metadata_value:
            if (value.kind != JsonKind::null) unexpected(value.kind);
            state_ = State::top;
            return;
        case State::skipped:
            if (skipped_depth_ == 0) state_ = State::tensor;
            return;
        default:
            unexpected(value.kind);
    }
}

void SafetensorsHeader::finish_tensor() {
    if (!saw_dtype_ || !saw_shape_ || !saw_offsets_) {
        const std::string_view missing = !saw_dtype_ ? "dtype" : !saw_shape_ ? "shape" : "data_offsets";
        fail_tensor(missing, "is missing");
    }
    const ModelFile& file = model_.files[file_];
    const std::uint64_t data_bytes = file.bytes - file.data_offset;
    const auto [begin, end] = offsets_;
    if (begin > end) {
        fail_tensor("data_offsets",
                    "begin at " + std::to_string(begin) + ", after their end at " + std::to_string(end));
    }
    if (end > data_bytes) {
        fail_tensor("data_offsets", "end at " + std::to_string(end) + ", but the file holds " +
                                        std::to_string(data_bytes) + " bytes of data: truncated, or wrong");
    }
    const TensorSize size = tensor_size(*type_, shape_);
    if (!size.problem.empty()) fail_tensor("shape", size.problem);
    if (size.bytes != end - begin) {
        fail_tensor("data_offsets", "span " + std::to_string(end - begin) + " bytes, but dtype and shape make " +
                                        std::to_string(size.bytes));
    }
    Tensor tensor;
    tensor.name = model_.arena.copy(std::string_view(name_));
    tensor.dtype = type_->name;
    tensor.shape = model_.arena.copy(std::span<const std::uint64_t>(shape_));
    tensor.file = file_;
    tensor.offset = file.data_offset + begin;
    tensor.bytes = size.bytes;
    model_.tensors.push_back(tensor);
}

}  // namespace stagehand::cli::model
