// The calls of the owners of stagehand.hpp. An object that a call makes is dropped.
#include "calls.h"

#include <deque>

#include <stagehand/stagehand.hpp>

namespace stagehand::test {
namespace {

using A = Arguments;

// An owner of what the world keeps.
template <class Owner>
struct Lent : Owner {
    using Owner::Owner;
    ~Lent() { this->release(); }
};

Lent<Device> device(A& a) { return Lent<Device>(a.get<sh_device*>(0)); }
Lent<Runtime> runtime(A& a) { return Lent<Runtime>(a.get<sh_runtime*>(0)); }
Lent<Spiller> spiller(A& a) { return Lent<Spiller>(a.get<sh_spiller*>(0)); }
// A view is kept, because the world releases what it has acquired.
View& view(A& a) {
    static auto* const kept = new std::deque<View>;
    auto view = sh_sized<sh_view>();
    view.block = a.get<sh_block>(1);
    return kept->emplace_back(a.get<sh_runtime*>(0), a.get<sh_stream>(2), view);
}
uint64_t number(A& a, size_t index) { return a.get<uint64_t>(index); }
uint32_t flags(A& a, size_t index) { return a.get<uint32_t>(index); }
std::string text(A& a, size_t index) { return a.get<const char*>(index); }
// Arguments `index` and the next: an array and its count.
template <class Element>
Span<const Element> list(A& a, size_t index) {
    return {a.get<const Element*>(index), number(a, index + 1)};
}
Span<const sh_block> blocks(A& a) { return list<sh_block>(a, 1); }
template <class Options>
Options options(A& a, size_t index) {
    const Options* const given = a.get<const Options*>(index);
    return given ? *given : sh_sized<Options>();
}
Span<const sh_activation> activations(A& a) {
    const auto step = options<sh_training_step>(a, 0);
    return {step.activations, step.activation_count};
}
Span<const uint32_t> fates(A& a) {
    if (a.json(1).is_null()) return {};
    return {a.get<const uint32_t*>(1), a.json(1).size()};
}
Allocation allocation(A& a) {
    const auto given = options<sh_alloc_options>(a, 2);
    if (!given.tag) return Allocation(device(a), number(a, 1));
    return Allocation(device(a), number(a, 1), given.tag, given.contents, given.flags, given.format);
}
void collect(A& a) {
    std::vector<sh_ticket> tickets;
    spiller(a).collect(tickets, number(a, 1), flags(a, 2));
}

using CppCalls = std::map<std::string, void (*)(A&)>;

CppCalls runtimes_calls() {
    return {
        {"sh_acquire", [](A& a) { runtime(a).acquire(number(a, 1), number(a, 2)); }},
        {"sh_acquire_many", [](A& a) { runtime(a).acquire_many(blocks(a), number(a, 3)); }},
        {"sh_block_get_state", [](A& a) { runtime(a).block_info(number(a, 1)); }},
        {"sh_capture_begin", [](A& a) { runtime(a).capture(number(a, 1)); }},
        {"sh_guest_begin",
         [](A& a) {
             Lent<Runtime> guest = runtime(a);
             guest.as_guest(guest, options<sh_guest_options>(a, 1));
         }},
        {"sh_invalidate_blocks", [](A& a) { runtime(a).invalidate(blocks(a)); }},
        {"sh_keep_resident", [](A& a) { runtime(a).keep_resident(); }},
        {"sh_mark_dirty", [](A& a) { runtime(a).mark_dirty(number(a, 1)); }},
        {"sh_plan", [](A& a) { runtime(a).plan(options<sh_plan_options>(a, 1)); }},
        {"sh_prefetch", [](A& a) { runtime(a).prefetch(blocks(a)); }},
        {"sh_protect_blocks", [](A& a) { runtime(a).protect(blocks(a)); }},
        {"sh_read_block", [](A& a) { view(a).read(number(a, 3), a.get<void*>(4), number(a, 5)); }},
        {"sh_register_blocks", [](A& a) { runtime(a).register_blocks(list<sh_block_desc>(a, 1)); }},
        {"sh_register_parts",
         [](A& a) {
             const auto desc = options<sh_block_desc>(a, 1);
             runtime(a).register_parts(desc, options<sh_part_options>(a, 2), number(a, 4));
         }},
        {"sh_release", [](A& a) { view(a).release(); }},
        {"sh_reserve", [](A& a) { runtime(a).reserve(number(a, 1), flags(a, 2)); }},
        {"sh_runtime_get_stats", [](A& a) { runtime(a).stats(); }},
        {"sh_runtime_synchronize", [](A& a) { runtime(a).synchronize(); }},
        {"sh_set_pressure", [](A& a) { runtime(a).set_pressure(nullptr, nullptr); }},
        {"sh_set_schedule", [](A& a) { runtime(a).set_schedule(list<sh_use>(a, 1)); }},
        {"sh_source_update_begin", [](A& a) { runtime(a).update_sources(blocks(a)); }},
        {"sh_step_begin", [](A& a) { runtime(a).step(a.get<const char*>(1)); }},
        {"sh_stream_forget", [](A& a) { runtime(a).forget(number(a, 1)); }},
        {"sh_telemetry_start",
         [](A& a) {
             if (a.json(1).is_null()) runtime(a).telemetry_start(text(a, 2));
             if (!a.json(1).is_null()) Lent<Spiller>(a.get<sh_spiller*>(1)).telemetry_start(text(a, 2));
         }},
        {"sh_trim", [](A& a) { runtime(a).trim(number(a, 1)); }},
        {"sh_unregister_blocks", [](A& a) { runtime(a).unregister_blocks(blocks(a)); }},
        {"sh_verify_block", [](A& a) { view(a).verify(); }},
        {"sh_write_back",
         [](A& a) { a.json(1).is_null() ? runtime(a).write_back_all() : runtime(a).write_back(blocks(a)); }},
    };
}

CppCalls sets_calls() {
    return {
        {"sh_acquire_members",
         [](A& a) { runtime(a).acquire_members(number(a, 1), list<std::uint32_t>(a, 2), number(a, 4)); }},
        {"sh_prefetch_members",
         [](A& a) {
             runtime(a).prefetch_members(number(a, 1), {a.get<const std::uint32_t*>(2), number(a, 4)},
                                         a.get<const float*>(3));
         }},
        {"sh_set_create",
         [](A& a) { runtime(a).register_set(list<sh_block_desc>(a, 2), options<sh_set_options>(a, 1)); }},
        {"sh_set_destroy", [](A& a) { runtime(a).unregister_set(number(a, 1)); }},
        {"sh_set_get_info", [](A& a) { runtime(a).set_info(number(a, 1)); }},
    };
}

CppCalls other_calls() {
    return {
        {"sh_alloc", [](A& a) { allocation(a); }},
        {"sh_device_get_caps", [](A& a) { device(a).capabilities(); }},
        {"sh_device_get_clock", [](A& a) { device(a).clock_ns(); }},
        {"sh_device_get_memory", [](A& a) { device(a).memory(); }},
        {"sh_device_open", [](A& a) { Device(text(a, 0), options<sh_device_options>(a, 1)); }},
        {"sh_device_set_budget", [](A& a) { device(a).set_budget(number(a, 1)); }},
        {"sh_graph_enter", [](A& a) { Lent<Graph>(a.get<sh_graph*>(0)).launch(number(a, 1)); }},
        {"sh_host_alloc", [](A& a) { PinnedMemory(device(a), number(a, 1)); }},
        {"sh_occupancy_add_callbacks", [](A& a) { PauseCallbacks(device(a), PauseCallbacks::Function()); }},
        {"sh_occupancy_get_info", [](A& a) { device(a).occupancy(text(a, 1)); }},
        {"sh_occupancy_list", [](A& a) { device(a).occupancies(); }},
        {"sh_occupancy_read", [](A& a) { device(a).read_released(number(a, 1), number(a, 2), a.get<void*>(3)); }},
        {"sh_occupancy_trim", [](A& a) { device(a).trim_occupancy(); }},
        {"sh_pause", [](A& a) { device(a).pause(options<sh_pause_options>(a, 1)); }},
        {"sh_plan_activations", [](A& a) { plan_activations(options<sh_training_step>(a, 0), activations(a)); }},
        {"sh_prefetch_spilled",
         [](A& a) {
             spiller(a).prefetch({a.get<const sh_ticket*>(1), number(a, 3)},
                                 {a.get<const uint64_t*>(2), a.json(2).size()}, number(a, 4));
         }},
        {"sh_restore", [](A& a) { spiller(a).restore(number(a, 1), number(a, 2), number(a, 3)); }},
        {"sh_resume", [](A& a) { device(a).resume(options<sh_resume_options>(a, 1)); }},
        {"sh_runtime_create", [](A& a) { Runtime(device(a), options<sh_runtime_options>(a, 1)); }},
        {"sh_set_log", [](A& a) { set_log(a.get<int32_t>(0), nullptr); }},
        {"sh_simulate_activations",
         [](A& a) { simulate_activations(options<sh_training_step>(a, 0), activations(a), fates(a)); }},
        {"sh_spill", [](A& a) { spiller(a).spill(options<sh_saved_tensor>(a, 1), number(a, 2), flags(a, 3)); }},
        {"sh_spiller_begin_step", [](A& a) { spiller(a).step(number(a, 1)); }},
        {"sh_spiller_collect", collect},
        {"sh_spiller_create", [](A& a) { Spiller(device(a), options<sh_spiller_options>(a, 1)); }},
        {"sh_spiller_get_stats", [](A& a) { spiller(a).stats(); }},
        {"sh_spiller_get_upcoming", [](A& a) { spiller(a).upcoming(number(a, 3)); }},
        {"sh_spiller_trim", [](A& a) { spiller(a).trim(); }},
        {"sh_stream_create", [](A& a) { Stream(device(a)); }},
        {"sh_ticket_get_info", [](A& a) { spiller(a).info(number(a, 1)); }},
        {"sh_ticket_release", [](A& a) { Ticket(a.get<sh_spiller*>(0), number(a, 1)).release(); }},
        {"sh_trace_start", [](A& a) { trace_start(text(a, 0)); }},
        {"sh_unpack", [](A& a) { unpack(a.get<void*>(0), number(a, 1), number(a, 2), number(a, 3), a.get<void*>(4)); }},
    };
}

}  // namespace

const Calls& cpp_calls() {
    static const Calls calls = [] {
        Calls all;
        for (const CppCalls& some : {runtimes_calls(), sets_calls(), other_calls()})
            for (const auto& [name, call] : some)
                all[name] = [call](A& a) {
                    call(a);
                    return sh_status(SH_OK);
                };
        return all;
    }();
    return calls;
}

}  // namespace stagehand::test
