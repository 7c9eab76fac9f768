// The structs of callers. A caller may be built with any version of the headers, so reads and writes are bounded by the
// size that its struct tells.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <string>
#include <vector>

#include <stagehand/stagehand.h>

#include "base/scratch.h"
#include "base/status.h"

namespace stagehand::api {

// Size of each struct in the first version of the headers that has it: 0.1 unless a line says otherwise. These never
// change.
template <class Struct>
inline constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<sh_device_options> = 88;
template <>
inline constexpr size_t kFirstSize<sh_host_options> = 56;
template <>
inline constexpr size_t kFirstSize<sh_helper_options> = 16;
template <>
inline constexpr size_t kFirstSize<sh_memory_info> = 104;
template <>
inline constexpr size_t kFirstSize<sh_device_caps> = 272;
template <>
inline constexpr size_t kFirstSize<sh_backend_info> = 1072;
template <>
inline constexpr size_t kFirstSize<sh_runtime_options> = 40;
template <>
inline constexpr size_t kFirstSize<sh_segment> = 64;
template <>
inline constexpr size_t kFirstSize<sh_block_desc> = 56;
template <>
inline constexpr size_t kFirstSize<sh_block_state> = 136;
template <>
inline constexpr size_t kFirstSize<sh_use> = 24;
template <>
inline constexpr size_t kFirstSize<sh_plan_options> = 24;
template <>
inline constexpr size_t kFirstSize<sh_plan_info> = 144;
template <>
inline constexpr size_t kFirstSize<sh_view> = 40;
template <>
inline constexpr size_t kFirstSize<sh_guest_options> = 32;
template <>
inline constexpr size_t kFirstSize<sh_runtime_stats> = 224;
// Since version 0.2.
template <>
inline constexpr size_t kFirstSize<sh_spill_class> = 24;
template <>
inline constexpr size_t kFirstSize<sh_spiller_options> = 88;
template <>
inline constexpr size_t kFirstSize<sh_saved_tensor> = 72;
template <>
inline constexpr size_t kFirstSize<sh_ticket_info> = 40;
template <>
inline constexpr size_t kFirstSize<sh_spiller_stats> = 168;
template <>
inline constexpr size_t kFirstSize<sh_activation> = 72;
template <>
inline constexpr size_t kFirstSize<sh_memory_point> = 24;
template <>
inline constexpr size_t kFirstSize<sh_training_step> = 136;
template <>
inline constexpr size_t kFirstSize<sh_activation_plan> = 80;
template <>
inline constexpr size_t kFirstSize<sh_control_options> = 24;
template <>
inline constexpr size_t kFirstSize<sh_control_info> = 136;
template <>
inline constexpr size_t kFirstSize<sh_alloc_options> = 16;
template <>
inline constexpr size_t kFirstSize<sh_pause_options> = 32;
template <>
inline constexpr size_t kFirstSize<sh_resume_options> = 24;
template <>
inline constexpr size_t kFirstSize<sh_occupancy_change> = 32;
template <>
inline constexpr size_t kFirstSize<sh_occupancy_info> = 128;

template <>
inline constexpr size_t kFirstSize<sh_kind_info> = 88;
template <>
inline constexpr size_t kFirstSize<sh_part_options> = 24;
template <>
inline constexpr size_t kFirstSize<sh_part> = 32;
template <>
inline constexpr size_t kFirstSize<sh_set_options> = 48;
template <>
inline constexpr size_t kFirstSize<sh_set_info> = 64;

template <class Struct>
concept CallersStruct = (kFirstSize<Struct> != 0 && sizeof(Struct) >= kFirstSize<Struct>);

// What is known of a struct's size: the first version's, this library's, and the alignment of every version.
struct KnownSize {
    size_t least, bytes, alignment;
};

// The size of a version between the first and this library's: none of its bytes needs a look.
template <CallersStruct Struct>
bool is_known_size(uint32_t told) {
    return told == sizeof(Struct) ||
           (told >= kFirstSize<Struct> && told < sizeof(Struct) && told % alignof(Struct) == 0);
}

// Checks the size that a caller's struct tells. Bytes that this library does not know must be zero.
Status check_size(const void* data, uint32_t told, const KnownSize& known, const char* name);

template <CallersStruct Struct>
Status check_struct(const Struct* data, const char* name) {
    if (!data) return Status(SH_ERROR_INVALID_ARGUMENT, std::string(name) + " is NULL");
    if (data->struct_size == sizeof(Struct)) [[likely]]
        return Status();
    return check_size(data, data->struct_size, {kFirstSize<Struct>, sizeof(Struct), alignof(Struct)}, name);
}

// Reads a struct that was checked. Fields that the caller's version does not have are zero.
template <CallersStruct Struct>
void read_struct(const Struct* from, Struct* to) {
    *to = {};
    std::memcpy(static_cast<void*>(to), from, std::min<size_t>(from->struct_size, sizeof(Struct)));
    to->struct_size = sizeof(Struct);
}

// A caller's options, or the defaults if there are none.
template <CallersStruct Struct>
Status take_options(const Struct* given, const char* name, Struct* out) {
    *out = {};
    out->struct_size = sizeof(Struct);
    if (!given) return Status();
    SH_TRY(check_struct(given, name));
    read_struct(given, out);
    return Status();
}

// A struct that a call fills for its caller: in place if the caller has this library's version, or else in a copy.
template <CallersStruct Struct>
class Output {
public:
    // `to` was checked, or is NULL: then the call fills a copy that nobody gets.
    explicit Output(Struct* to) : to_(to), in_place_(to && to->struct_size == sizeof(Struct)) {
        if (in_place_) [[likely]]
            return;  // on the hot path: the copy stays untouched
        own_ = {};
        own_.struct_size = sizeof(Struct);
    }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    Struct* get() { return in_place_ ? to_ : &own_; }
    // Copies what the caller's version has.
    void give() {
        if (in_place_ || !to_) return;
        own_.struct_size = to_->struct_size;
        std::memcpy(static_cast<void*>(to_), &own_, std::min<size_t>(to_->struct_size, sizeof(Struct)));
    }

private:
    Struct* const to_;
    const bool in_place_;
    Struct own_;
};

// Runs `fill` on a caller's struct and gives the result out if it succeeds.
template <CallersStruct Struct, class Fill>
Status fill_struct(Struct* to, const char* name, Fill&& fill) {
    SH_TRY(check_struct(to, name));
    Output<Struct> out(to);
    SH_TRY(fill(out.get()));
    out.give();
    return Status();
}

// A count above this is a mistake in any array. It is refused before the call reads or allocates anything.
constexpr uint64_t kMostElements = uint64_t(1) << 32;
Status check_count(uint64_t count, const char* name);

// The names of a caller's array and of its number of elements, for messages.
struct ArrayName {
    const char* elements;
    const char* count = "count";
};

// Calls visit(element, index) for each element of a caller's array. The elements' distance is their struct_size.
template <class Struct, class Visit>
requires CallersStruct<std::remove_const_t<Struct>> Status for_each_element(Struct* first, uint64_t count,
                                                                            const ArrayName& names, Visit&& visit) {
    if (!count) return Status();
    const char* const name = names.elements;
    SH_TRY(check_count(count, names.count));
    SH_TRY(check_struct<std::remove_const_t<Struct>>(first, name));
    const uint64_t distance = first->struct_size;
    for (uint64_t i = 0; i < count; i++) {
        auto* element = reinterpret_cast<Struct*>(reinterpret_cast<uintptr_t>(first) + i * distance);
        if (element->struct_size != distance)
            return Status(SH_ERROR_INVALID_STRUCT, std::string(name) + "[" + std::to_string(i) +
                                                       "].struct_size differs from that of " + name + "[0]");
        SH_TRY(check_struct<std::remove_const_t<Struct>>(element, name));
        visit(element, i);
    }
    return Status();
}

// Reads a caller's array.
template <CallersStruct Struct>
Status take_array(const Struct* first, uint64_t count, const ArrayName& names, std::vector<Struct>* out) {
    out->clear();
    SH_TRY(check_count(count, names.count));
    // A count that lies is found at the first element that is not one, so the memory is not reserved for all at once.
    out->reserve(std::min<uint64_t>(count, 4096));
    return for_each_element(first, count, names,
                            [&](const Struct* element, uint64_t) { read_struct(element, &out->emplace_back()); });
}

// A caller's array that a call fills: element by element in place if the caller has this library's version, or else in
// copies.
template <CallersStruct Struct>
class OutputArray {
public:
    Status open(Struct* first, uint64_t count, const ArrayName& names) {
        SH_TRY(
            for_each_element(first, count, names, [&](Struct* element, uint64_t) { elements_->push_back(element); }));
        first_ = reinterpret_cast<uintptr_t>(first);
        distance_ = count ? first->struct_size : 0;
        if (!count || distance_ == sizeof(Struct)) return Status();
        own_->assign(count, Struct{});
        for (uint64_t i = 0; i < count; i++) (*elements_)[i] = &(*own_)[i];
        return Status();
    }
    const std::vector<Struct*>& get() { return *elements_; }
    // Copies what the caller's version has, of the first `count` elements.
    void give(uint64_t count) {
        for (uint64_t i = 0; i < std::min<uint64_t>(count, own_->size()); i++) {
            (*own_)[i].struct_size = distance_;
            std::memcpy(reinterpret_cast<void*>(first_ + i * distance_), &(*own_)[i],
                        std::min<size_t>(distance_, sizeof(Struct)));
        }
    }

private:
    uintptr_t first_ = 0;
    uint32_t distance_ = 0;
    Scratch<Struct*> elements_;
    Scratch<Struct> own_;
};

}  // namespace stagehand::api
