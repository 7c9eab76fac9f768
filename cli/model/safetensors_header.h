// The JSON header of a safetensors file, as a state machine over events:
//   { "__metadata__": { key: text... },
//     tensor: { "dtype": text, "shape": [n...], "data_offsets": [n, n] }... }
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checks.h"
#include "element_type.h"
#include "json_events.h"
#include "model.h"

namespace stagehand::cli::model {

// The metadata of a file that `stagehand pack` has written has this key.
inline constexpr std::string_view packed_key = "stagehand.packed";

// Adds a tensor to the model at the end of its description, after checking that the description is complete and the
// bytes are in the file.
class SafetensorsHeader final : public JsonEvents {
public:
    SafetensorsHeader(Model& model, std::uint32_t file) : model_(model), file_(file) {}

    void start_object() override;
    void end_object() override;
    void start_array() override;
    void end_array() override;
    void key(std::string_view name) override;
    void scalar(const JsonScalar& value) override;

private:
    enum class State {
        before,
        top,           // between tensors
        tensor_value,  // a tensor's name was read
        tensor,        // between its members
        dtype,         // a member's name was read
        shape,
        shape_items,
        offsets,
        offsets_items,
        metadata_value,
        metadata,
        metadata_item,
        skipped,  // in a member that the format does not know
        after,
    };

    void enter_skipped();
    void leave_skipped();
    void member(std::string_view name);
    void once(bool& seen, std::string_view member);
    void finish_tensor();
    [[noreturn]] void unexpected(JsonKind found) const;
    [[noreturn]] void fail(std::string_view field, std::string_view message) const;
    [[noreturn]] void fail_tensor(std::string_view member, std::string_view message) const {
        fail(tensor_field(name_, member), message);
    }

    Model& model_;
    std::uint32_t file_;
    State state_ = State::before;
    std::uint32_t skipped_depth_ = 0;
    bool saw_metadata_ = false;
    std::string metadata_key_;

    std::string name_;  // the tensor being read, and what is known of it
    const ElementType* type_ = nullptr;
    std::vector<std::uint64_t> shape_;
    std::array<std::uint64_t, 2> offsets_{};
    std::size_t offset_count_ = 0;
    bool saw_dtype_ = false;
    bool saw_shape_ = false;
    bool saw_offsets_ = false;
};

}  // namespace stagehand::cli::model
