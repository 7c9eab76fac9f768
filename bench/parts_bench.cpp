// Compares steps with large blocks in one piece with steps that use the same blocks part by part, and both with the
// bound. The engine computes for as long as the bytes beyond the budget take on the link.
#include <string>

#include "measure.h"

namespace {

using namespace bench;

// MiB of each block: an embedding, layers, and a head.
std::vector<uint64_t> sizes_of(const std::string& device) {
    const uint64_t mib = (uint64_t(1) << 20) / (device == "host" ? 16 : 1);
    std::vector<uint64_t> sizes(22, 423 * mib);
    sizes.front() = sizes.back() = 1050 * mib;
    return sizes;
}

// Registers the parts of each block, and uses them like blocks.
void add_parts(Model& model, const std::vector<uint64_t>& sizes, char* memory) {
    sh_part_options options = SH_PART_OPTIONS_INIT;
    options.unit_bytes = 8192;
    for (const uint64_t bytes : sizes) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = memory;
        segment.bytes = bytes;
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = bytes;
        desc.segments = &segment;
        desc.segment_count = 1;
        std::vector<sh_part> parts(64, sh_sized<sh_part>());
        uint64_t count = 0;
        CHECK(sh_register_parts(model.runtime, &desc, &options, parts.data(), parts.size(), &count));
        for (uint64_t i = 0; i < count; i++) {
            model.blocks.push_back(parts[i].block);
            model.sizes.push_back(parts[i].bytes);
        }
        memory += bytes;
    }
}

// Returns the milliseconds of a step, in the mean of ten.
double step_ms(const Model& model, const std::vector<sh_use>& uses) {
    sh_stream stream = SH_STREAM_HOST;
    CHECK(sh_stream_create(model.device, &stream));
    const double ms = model.steps_ms(uses, stream, 3, 10);
    sh_stream_destroy(model.device, stream);
    return ms;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string name = argc > 1 ? argv[1] : "host";
    const std::vector<uint64_t> sizes = sizes_of(name);
    uint64_t total = 0;
    for (const uint64_t bytes : sizes) total += bytes;
    const PacedDevice subject(name.c_str(), total, 64 << 10, 2 << 20, true);
    std::printf("budget  bound ms  whole: blocks  ms / bound  plan   parts: blocks  ms / bound  plan\n");
    for (const double budget : {0.17, 0.4, 0.67, 0.85, 0.95}) {
        CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(total) * budget)));
        double bound_ms = 0;
        for (const bool divided : {false, true}) {
            Model model(name.c_str(), SH_DEVICE_OPTIONS_INIT);
            if (divided)
                add_parts(model, sizes, subject.memory);
            else
                model.add(sizes, subject.memory);
            auto plan = sh_sized<sh_plan_info>();
            model.schedule(1000, false);
            CHECK(sh_plan(model.runtime, nullptr, &plan));
            bound_ms =
                static_cast<double>(total) * (1 - budget) / static_cast<double>(plan.link_bytes_per_second) * 1e3;
            const std::vector<sh_use> uses = model.schedule(static_cast<uint64_t>(bound_ms * 1e6), false);
            CHECK(sh_plan(model.runtime, nullptr, &plan));
            if (!divided) std::printf("%4.0f %%  %8.2f", budget * 100, bound_ms);
            std::printf("  %13zu  %10.3f  %5.3f", uses.size(), step_ms(model, uses) / bound_ms,
                        static_cast<double>(plan.step_ns) / 1e6 / bound_ms);
            std::fflush(stdout);
        }
        std::printf("\n");
    }
}
