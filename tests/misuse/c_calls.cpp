// Every function of the C interface.
#include <utility>

#include "calls.h"

namespace stagehand::test {
namespace {

// Of functions that return nothing, the thread's last error tells the status.
sh_status told_by(const std::function<void()>& work) {
    char before[512] = "", after[512] = "";
    if (sh_set_log(99, nullptr, nullptr) == SH_OK) return SH_ERROR_INTERNAL;  // an error that `work` does not make
    sh_last_error(before, sizeof before);
    work();
    sh_last_error(after, sizeof after);
    return std::string(before) == after ? SH_OK : SH_ERROR_INVALID_HANDLE;
}

template <class Result, class... Parameters>
Calls::mapped_type call(Result (*function)(Parameters...)) {
    return [function](Arguments& arguments) {
        if (arguments.size() != sizeof...(Parameters)) throw std::out_of_range("another number of arguments");
        return [&]<size_t... I>(std::index_sequence<I...>)->sh_status {
            if constexpr (std::is_void_v<Result>) {
                return told_by([&] { function(arguments.get<Parameters>(I)...); });
            } else {
                return function(arguments.get<Parameters>(I)...);
            }
        }
        (std::index_sequence_for<Parameters...>());
    };
}

template <class... Entries>
Calls all(Entries... entries) {
    return {entries...};
}

}  // namespace

#define CALL(function) Calls::value_type(#function, call(function))
const Calls& c_calls() {
    static const Calls calls =
        all(CALL(sh_acquire), CALL(sh_acquire_many), CALL(sh_acquire_members), CALL(sh_alloc), CALL(sh_backend_list),
            CALL(sh_block_get_state), CALL(sh_capture_begin), CALL(sh_capture_end), CALL(sh_control_start),
            CALL(sh_device_close), CALL(sh_device_get_caps), CALL(sh_device_get_clock), CALL(sh_device_get_memory),
            CALL(sh_device_open), CALL(sh_device_set_budget), CALL(sh_free), CALL(sh_graph_destroy),
            CALL(sh_graph_enter), CALL(sh_graph_leave), CALL(sh_guest_begin), CALL(sh_host_alloc), CALL(sh_host_free),
            CALL(sh_invalidate_blocks), CALL(sh_keep_resident), CALL(sh_kind_list), CALL(sh_mark_dirty),
            CALL(sh_occupancy_add_callbacks), CALL(sh_occupancy_get_info), CALL(sh_occupancy_list),
            CALL(sh_occupancy_read), CALL(sh_occupancy_trim), CALL(sh_pause), CALL(sh_plan), CALL(sh_plan_activations),
            CALL(sh_prefetch), CALL(sh_prefetch_members), CALL(sh_prefetch_spilled), CALL(sh_protect_blocks),
            CALL(sh_read_block), CALL(sh_register_blocks), CALL(sh_register_parts), CALL(sh_release),
            CALL(sh_release_members), CALL(sh_reserve), CALL(sh_restore), CALL(sh_resume), CALL(sh_runtime_create),
            CALL(sh_runtime_destroy), CALL(sh_runtime_get_stats), CALL(sh_runtime_synchronize), CALL(sh_scope_end),
            CALL(sh_set_create), CALL(sh_set_destroy), CALL(sh_set_get_info), CALL(sh_set_log), CALL(sh_set_pressure),
            CALL(sh_set_schedule), CALL(sh_simulate_activations), CALL(sh_source_replace), CALL(sh_source_update_begin),
            CALL(sh_source_update_end), CALL(sh_spill), CALL(sh_spiller_begin_step), CALL(sh_spiller_collect),
            CALL(sh_spiller_create), CALL(sh_spiller_destroy), CALL(sh_spiller_end_step), CALL(sh_spiller_get_stats),
            CALL(sh_spiller_get_upcoming), CALL(sh_spiller_trim), CALL(sh_step_begin), CALL(sh_step_end),
            CALL(sh_stream_create), CALL(sh_stream_destroy), CALL(sh_stream_forget), CALL(sh_stream_launch),
            CALL(sh_stream_synchronize), CALL(sh_telemetry_start), CALL(sh_ticket_get_info), CALL(sh_ticket_release),
            CALL(sh_trace_start), CALL(sh_trim), CALL(sh_unpack), CALL(sh_unregister_blocks), CALL(sh_verify_block),
            CALL(sh_write_back));
    return calls;
}

}  // namespace stagehand::test
