#include "core/spill/saved_span.h"

#include <string>

#include "codec/float_format.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kMostDimensions = 64;
constexpr uint32_t kLargestElement = 65536;
constexpr __int128 kLargestSpan = __int128(1) << 48;

Status impossible(const std::string& text) { return Status(SH_ERROR_INVALID_ARGUMENT, "tensor." + text); }

Status check_fields(const sh_saved_tensor& tensor) {
    if (!tensor.element_bytes || tensor.element_bytes > kLargestElement)
        return impossible("element_bytes is " + std::to_string(tensor.element_bytes) + ", not 1 to 65536");
    const auto format = codec::format_of(tensor.format);
    if (tensor.format && !format) return impossible("format is " + std::to_string(tensor.format) + ", not SH_FORMAT_*");
    if (format && codec::fields_of(*format).bytes() != tensor.element_bytes)
        return impossible("element_bytes is " + std::to_string(tensor.element_bytes) +
                          ", and elements of its format have " + std::to_string(codec::fields_of(*format).bytes()));
    if (tensor.reserved) return impossible("reserved is not 0");
    if (tensor.dimensions > kMostDimensions)
        return impossible("dimensions is " + std::to_string(tensor.dimensions) + ", more than 64");
    if (tensor.dimensions && !tensor.sizes) return impossible("sizes is NULL");
    for (uint64_t i = 0; i < tensor.dimensions; i++)
        if (tensor.sizes[i] < 0)
            return impossible("sizes[" + std::to_string(i) + "] is " + std::to_string(tensor.sizes[i]));
    return Status();
}

bool is_empty(const sh_saved_tensor& tensor) {
    for (uint64_t i = 0; i < tensor.dimensions; i++)
        if (!tensor.sizes[i]) return true;
    return false;
}

// The first and the last element, in elements from the one whose indices are all 0. `first` is not above 0.
struct Reach {
    __int128 first = 0, last = 0;
};

// No sum or product overflows: 64 terms of 126 bits at most would, so the walk ends where a range leaves 2^62.
Status reach_of(const sh_saved_tensor& tensor, Reach* out) {
    constexpr __int128 kFar = __int128(1) << 62;
    Reach reach;
    __int128 dense = 1;  // stride of this dimension without gaps
    for (uint64_t i = tensor.dimensions; i-- > 0;) {
        const __int128 steps = tensor.sizes[i] - 1;
        const __int128 distance = steps * (tensor.strides ? __int128(tensor.strides[i]) : dense);
        (distance < 0 ? reach.first : reach.last) += distance;
        dense *= tensor.sizes[i];
        if (reach.last - reach.first > kFar || dense > kFar)
            return impossible("sizes and strides span more than 2^62 elements");
    }
    *out = reach;
    return Status();
}

}  // namespace

Status span_of(const sh_saved_tensor& tensor, SavedSpan* out) {
    SH_TRY(check_fields(tensor));
    *out = {};
    if (is_empty(tensor)) return Status();
    if (!tensor.address) return impossible("address is 0");
    Reach reach;
    SH_TRY(reach_of(tensor, &reach));
    const __int128 size = tensor.element_bytes;
    const __int128 begin = __int128(tensor.address) + reach.first * size;
    const __int128 end = __int128(tensor.address) + (reach.last + 1) * size;
    if (begin <= 0 || end > (__int128(1) << 64)) return impossible("address and strides leave the address space");
    __int128 from = begin, to = end;
    if (tensor.storage_bytes) {
        const __int128 storage = tensor.storage_address ? __int128(tensor.storage_address) : begin;
        const __int128 storage_end = storage + tensor.storage_bytes;
        if (begin < storage || end > storage_end)
            return impossible("storage_address and storage_bytes do not hold the whole tensor");
        if (2 * (end - begin) > storage_end - storage) {
            from = storage;
            to = storage_end;
        }
    }
    if (to - from > kLargestSpan) return impossible("sizes and strides span more than 2^48 bytes");
    out->address = static_cast<uint64_t>(from);
    out->bytes = static_cast<uint64_t>(to - from);
    out->offset = static_cast<uint64_t>(__int128(tensor.address) - from);
    return Status();
}

}  // namespace stagehand::core
