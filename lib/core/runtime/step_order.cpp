#include "core/runtime/step_order.h"

namespace stagehand::core {

void StepOrder::arrive(uint32_t unit, bool learns) {
    if (record.under_way() && learns) record.add(unit);
    const uint64_t before = order.position().cursor();
    const bool had_deviated = order.position().deviated();
    if (order.arrive(unit)) {
        const uint64_t cursor = order.position().cursor();
        if (cursor > before) links.passed(order.followed().at(cursor - 1).compute_ns);
        if (cursor > before + 1) prefetcher.restart();
    }
    // The step may be one of another kind. Only its first departure tells.
    if (!had_deviated && order.position().deviated() && record.under_way() && order.recognise(record.entries()))
        prefetcher.renew();
}

bool StepOrder::learn(Kinds& kinds, size_t units) {
    if (kinds.learn(order, record, units) == Kinds::Learned::nothing) return false;
    prefetcher.renew();
    return true;
}

void StepOrder::replace(std::vector<Order::Entry> entries, size_t units) {
    const bool given = !entries.empty();
    order.set(std::move(entries), units, given);
    if (given) record.end();  // the record of the step under way does not overrule it
    prefetcher.renew();
}

}  // namespace stagehand::core
