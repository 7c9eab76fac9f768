#include "core/memory/set_shape.h"

#include <algorithm>
#include <string>

#include "core/memory/block_desc.h"

namespace stagehand::core {
namespace {

constexpr uint64_t kSlotUnit = 256;                   // of slots, as of blocks
constexpr uint64_t kLargestPool = uint64_t(1) << 46;  // so that no product overflows

Status bad(const std::string& what) { return Status(SH_ERROR_INVALID_ARGUMENT, what); }

}  // namespace

Status shape_set(const sh_set_options& options, std::span<const sh_block_desc> members, uint64_t page_bytes,
                 SetShape* out) {
    if (members.empty()) return bad("count is 0: a set has at least one member");
    const uint64_t bytes = members.front().bytes, count = members.size();
    for (size_t i = 0; i < count; i++)
        if (members[i].bytes != bytes)
            return bad(describe(members[i], i) + " has " + std::to_string(members[i].bytes) +
                       " bytes, and the first member has " + std::to_string(bytes) +
                       ": all members of a set have the same size");
    const uint64_t stride = options.stride ? options.stride : (bytes + kSlotUnit - 1) / kSlotUnit * kSlotUnit;
    if (stride % kSlotUnit || stride < bytes)
        return bad("stride is " + std::to_string(stride) + ", but has to be a multiple of 256, and at least the " +
                   std::to_string(bytes) + " bytes of a member");
    const uint64_t slots = options.slots ? std::min(options.slots, count) : count;
    const uint64_t call = std::max<uint64_t>(1, options.call_members);
    if (call > slots)
        return bad("call_members is " + std::to_string(call) + ", but the pool gets at most " + std::to_string(slots) +
                   " slots");
    const uint64_t group = options.group_members ? options.group_members : count;
    if (count % group)
        return bad("group_members is " + std::to_string(group) + ", which does not divide the " +
                   std::to_string(count) + " members");
    if (stride > kLargestPool / slots)
        return bad("stride: " + std::to_string(slots) + " slots of " + std::to_string(stride) +
                   " bytes exceed the address range");
    out->stride = stride;
    out->bytes = stride * slots;
    out->group_members = static_cast<uint32_t>(group);
    out->call_pages = static_cast<uint32_t>((call * stride + page_bytes - 1) / page_bytes);
    return Status();
}

}  // namespace stagehand::core
