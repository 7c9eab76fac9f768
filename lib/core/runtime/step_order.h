// StepOrder: follows the engine through its order. It has the record of a step, what is loaded ahead, the cache of what
// is outside the order, and the measured times.
#pragma once

#include <cstdint>

#include "core/plan/compute_meter.h"
#include "core/plan/kinds.h"
#include "core/plan/order.h"
#include "core/plan/order_record.h"
#include "core/plan/prefetcher.h"
#include "core/plan/unordered_cache.h"
#include "core/runtime/movers.h"

namespace stagehand::core {

struct StepOrder {
    StepOrder(Device& device, ModelMemory& memory, Movers& movers, Gate& gate)
        : links(device.links()),
          unordered(memory, order, movers.loader, movers.write_back, gate.stats()),
          prefetcher(memory, order, movers.loader),
          meter(memory.device) {}

    // The engine has come to a unit. Moves on in the order, and learns the order, which has no unordered units.
    void arrive(uint32_t unit, bool learns);
    // Records the order of a step that has begun, unless the engine has given one.
    void record_step() noexcept {
        if (!order.given()) record.begin();
    }
    // The order is known, and nothing has to be noted of a use.
    bool is_settled() const { return order.known() && !record.under_way() && !unordered.used() && !meter.measuring(); }
    // Follows another order from its beginning on.
    void follow(uint32_t number) noexcept {
        if (order.follow(number)) prefetcher.renew();
    }
    // take_up() and set_aside() do with the order what they do in Order.
    void take_up(size_t units) {
        if (order.take_up(units)) prefetcher.renew();
    }
    void set_aside() noexcept {
        order.set_aside();
        prefetcher.renew();
    }
    // The engine gives another order. An empty one is to be learned.
    void replace(std::vector<Order::Entry> entries, size_t units);
    // Takes over the order of the step that has ended, if it is that of another kind. Returns whether anything is new.
    bool learn(Kinds& kinds, size_t units);
    // Forgets units that are gone.
    template <class IsGone>
    void forget(IsGone is_gone, size_t units) noexcept {
        order.forget(is_gone, units);
        record.forget(is_gone);
        meter.forget(is_gone);
        prefetcher.renew();
    }

    Links& links;
    Order order;
    OrderRecord record;
    UnorderedCache unordered;
    Prefetcher prefetcher;
    ComputeMeter meter;
};

}  // namespace stagehand::core
