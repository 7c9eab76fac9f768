// The calls of a spiller.
#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "engine.h"
#include "every_call.h"

namespace stagehand::test {

// Saves two tensors, gives their memory back, and brings them back: one ahead of use, one at its use.
bool EveryCall::spill_and_restore() {
    constexpr uint64_t kBytes = 256 << 10;  // the fewest that are packed
    constexpr size_t kTensors = 2;
    std::vector<uint8_t> saved[kTensors], restored[kTensors];
    sh_ticket tickets[kTensors] = {}, named[kTensors];
    uint64_t count = 0, freed = 0;
    const std::string lines = folder_ + "/spills";
    if (!plan_a_step()) return false;
    sh_spiller_options options = SH_SPILLER_OPTIONS_INIT;
    options.flags = SH_SPILLER_KEEP_BYTES | SH_SPILLER_PACK;
    if (!ATTEMPT(sh_spiller_create, device_, &options, &spiller_)) return false;
    if (!ATTEMPT(sh_spiller_open_telemetry, spiller_, lines.c_str())) return false;
    const sh_activation_plan plan = SH_ACTIVATION_PLAN_INIT;
    if (!ATTEMPT(sh_spiller_note_plan, spiller_, &plan)) return false;
    for (uint64_t step = 0; step < 2; step++) {
        if (!attempt(
                "sh_spiller_begin_step", [&] { return sh_spiller_begin_step(spiller_, step); }, SH_ERROR_INVALID_STATE))
            return false;
        for (size_t i = 0; i < kTensors; i++) {
            saved[i] = contents_of(100 + i, step, kBytes);
            restored[i].assign(kBytes, 0);
            const int64_t size = kBytes;
            sh_saved_tensor tensor = SH_SAVED_TENSOR_INIT;
            tensor.element_bytes = 1;
            tensor.address = reinterpret_cast<uint64_t>(saved[i].data());
            tensor.dimensions = 1;
            tensor.sizes = &size;
            tensor.storage_key = 1 + i;
            tensor.format = SH_FORMAT_F8_E4M3;
            const auto spill = [&] {
                return std::min(sh_spill(spiller_, &tensor, stream_, 0, &tickets[i]), SH_OK + 0);
            };
            if (!attempt("sh_spill", spill)) return false;
        }
        if (!ATTEMPT(sh_spiller_collect, spiller_, stream_, SH_COLLECT_ALL, named, kTensors, &count)) return false;
        if (!ATTEMPT(sh_spiller_get_upcoming, spiller_, 0, named, kTensors, &count)) return false;
        const uint64_t address = reinterpret_cast<uint64_t>(restored[0].data());
        if (!ATTEMPT(sh_prefetch_spilled, spiller_, tickets, &address, 1, stream_)) return false;
        if (!bring_back(tickets, saved, restored, kTensors)) return false;
        if (!attempt(
                "sh_spiller_end_step", [&] { return sh_spiller_end_step(spiller_); }, SH_ERROR_INVALID_STATE))
            return false;
    }
    sh_spiller_stats stats = SH_SPILLER_STATS_INIT;
    if (!ATTEMPT(sh_spiller_get_stats, spiller_, &stats) || !ATTEMPT(sh_spiller_trim, spiller_, &freed)) return false;
    EXPECT_EQ(stats.away_bytes, 0u);
    CALL(sh_spiller_destroy, std::exchange(spiller_, nullptr));
    return true;
}

bool EveryCall::plan_a_step() {
    std::array<sh_activation, 2> saved = {{SH_ACTIVATION_INIT, SH_ACTIVATION_INIT}};
    for (sh_activation& activation : saved) {
        activation.bytes = 1000;
        activation.first_use_ns = activation.last_use_ns = 2000;
    }
    sh_training_step step = SH_TRAINING_STEP_INIT;
    step.activations = saved.data();
    step.activation_count = saved.size();
    step.forward_end_ns = 1000;
    step.end_ns = 3000;
    step.target_peak_bytes = 1500;
    uint32_t fates[saved.size()];
    return ATTEMPT(sh_plan_activations, &step, fates, nullptr) &&
           ATTEMPT(sh_simulate_activations, &step, fates, nullptr, nullptr, 0, nullptr);
}

bool EveryCall::bring_back(const sh_ticket* tickets, const std::vector<uint8_t>* saved, std::vector<uint8_t>* restored,
                           size_t count) {
    for (size_t i = 0; i < count; i++) {
        sh_ticket_info info = SH_TICKET_INFO_INIT;
        if (!ATTEMPT(sh_ticket_get_info, spiller_, tickets[i], &info)) return false;
        bool kept = false;
        const auto restore = [&] {
            const sh_status status =
                sh_restore(spiller_, tickets[i], reinterpret_cast<uint64_t>(restored[i].data()), stream_);
            kept = status == SH_KEPT;
            return kept ? SH_OK + 0 : status;
        };
        if (!attempt("sh_restore", restore) || !ATTEMPT(sh_stream_synchronize, device_, stream_)) return false;
        EXPECT_TRUE(kept || restored[i] == saved[i]) << "tensor " << i;
        if (!ATTEMPT(sh_ticket_retain, spiller_, tickets[i])) return false;
        for (int references = 2; references > 0; references--)
            if (!attempt(
                    "sh_ticket_release", [&] { return sh_ticket_release(spiller_, tickets[i]); },
                    SH_ERROR_INVALID_HANDLE))
                return false;
    }
    return true;
}

}  // namespace stagehand::test
