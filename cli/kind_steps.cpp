#include "kind_steps.h"

#include <cstddef>
#include <cstdint>

#include "streaming_session.h"

namespace stagehand::cli {

namespace {

// Each kind has to come again, and its times have to be measured.
constexpr int cycles = 4;

void make_step(sh_runtime* runtime, const Stream& stream, const KindOption& kind, const std::vector<sh_use>& uses,
               bool plans) {
    check(sh_step_begin(runtime, kind.name.c_str()), "a step");
    for (const sh_use& use : uses) {
        sh_view view = SH_VIEW_INIT;
        check(sh_acquire(runtime, use.block, stream.handle(), 0, &view), "a block");
        stream.compute(use.compute_ns);
        check(sh_release(runtime, use.block, stream.handle()), "a block");
    }
    if (plans) check(sh_plan(runtime, nullptr, nullptr), "plan");  // when the next step begins
    check(sh_step_end(runtime), "a step");
    stream.synchronize();
}

}  // namespace

std::vector<sh_kind_info> plan_kinds(const Device& device, const Runtime& runtime, const BlockTable& table,
                                     const std::vector<sh_block>& blocks, Order order,
                                     const std::vector<KindOption>& kinds) {
    std::vector<std::vector<sh_use>> uses;
    for (const KindOption& kind : kinds) uses.push_back(schedule(step_uses(table, order, kind.compute_ms), blocks));
    const Stream stream(device.get());
    for (int cycle = 0; cycle <= cycles; ++cycle) {
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            for (std::uint32_t step = 0; step < (cycle < cycles ? kinds[i].steps : 1); ++step) {
                const bool last = cycle + 1 == cycles && i + 1 == kinds.size() && step + 1 == kinds[i].steps;
                make_step(runtime.get(), stream, kinds[i], uses[i], last);
            }
            if (cycle == cycles) break;  // the plan is in force
        }
    }
    std::vector<sh_kind_info> known(kinds.size(), SH_KIND_INFO_INIT);
    std::uint64_t count = 0;
    check(sh_kind_list(runtime.get(), known.data(), known.size(), &count), "kinds");
    std::vector<sh_kind_info> result;
    for (const KindOption& kind : kinds) {
        for (const sh_kind_info& info : known)
            if (kind.name == info.name) result.push_back(info);
    }
    return result;
}

}  // namespace stagehand::cli
