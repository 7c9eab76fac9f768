#include "core/runtime/protections.h"

#include <algorithm>

namespace stagehand::core {

Status Protections::protect(std::span<const sh_block> ids, bool* out_may_grow) {
    *out_may_grow = false;
    for (const sh_block id : ids)
        if (!parts_.registry.find(id)) return parts_.unknown_block(id);
    for (const sh_block id : ids) {
        Block& block = *parts_.registry.find(id);
        Unit& unit = parts_.registry.unit(block.unit);
        block.detail->protections++;
        if (unit.protections++) continue;
        units_++;
        if (unit.memory == Memory::unordered) parts_.unordered.pin(unit);
        if (parts_.order.contains(block.unit) && unit.own.size() < unit.pages) *out_may_grow = true;
    }
    return Status();
}

void Protections::end(Unit& unit, uint64_t times) {
    times = std::min(times, unit.protections);
    if (!times) return;
    unit.protections -= times;
    if (unit.protections) return;
    units_--;
    if (unit.memory == Memory::unordered) parts_.unordered.unpin(unit);
}

Status Protections::unprotect(std::span<const sh_block> ids) {
    for (const sh_block id : ids)
        if (!parts_.registry.find(id)) return parts_.unknown_block(id);
    size_t done = 0;
    Status status;
    for (; done < ids.size(); done++) {
        const Block& block = *parts_.registry.find(ids[done]);
        if (block.detail->protections == 0) {
            status = Status(SH_ERROR_INVALID_STATE,
                            parts_.registry.name_of(block) + " is not protected" + (done ? " that many times" : ""));
            break;
        }
        block.detail->protections--;
    }
    if (!status.ok()) {
        while (done-- > 0) parts_.registry.find(ids[done])->detail->protections++;
        return status;
    }
    for (const sh_block id : ids) end(parts_.registry.unit(parts_.registry.find(id)->unit), 1);
    return Status();
}

uint64_t Protections::own_pages() const {
    uint64_t own = 0;
    for (const Unit& unit : parts_.registry.units())
        if (unit.protections) own += unit.own.size();
    return own;
}

}  // namespace stagehand::core
