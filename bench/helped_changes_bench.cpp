// An engine that changes all its weights in each step, as an optimizer does: they come, are changed and go back. Over
// the device's own link, and with helpers. Compares with raw copies in both directions at once. Every byte of all
// sources is compared after each row.
#include "subjects.h"
#include "transfer/bond/bond.h"

namespace {

using namespace bench;

// A streamed model whose blocks are changed in each use: their first page gets the number of the step.
class Changed {
public:
    static constexpr uint64_t kStamp = 4096;

    Changed(const std::string& name, char* memory, uint64_t bytes, size_t count)
        : model_(name.c_str(), SH_DEVICE_OPTIONS_INIT), memory_(memory) {
        CHECK_STATUS(stagehand::core::Device::open(name.c_str(), SH_DEVICE_OPTIONS_INIT, &core_));
        make_stamps();
        for (size_t i = 0; i < count; i++) {
            sh_segment segment = SH_SEGMENT_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = memory + i * (bytes / count);
            segment.bytes = bytes / count;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = segment.bytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            desc.flags = SH_BLOCK_MUTABLE;
            model_.sizes.push_back(segment.bytes);
            CHECK(sh_register_blocks(model_.runtime, &desc, 1, &model_.blocks.emplace_back()));
        }
        uses_ = model_.schedule(1000, false);
        CHECK(sh_plan(model_.runtime, nullptr, nullptr));
    }
    ~Changed() {
        sh_stream_destroy(model_.device, stream_);
        CHECK(sh_free(model_.device, on_device_));
    }
    Changed(const Changed&) = delete;
    Changed& operator=(const Changed&) = delete;

    struct Row {
        double ms = 0, in = 0, out = 0, helped = 0;  // bytes of a step, and the part of them that helpers copied
        uint64_t waits = 0;
    };

    Row steps(int first, int count) {
        for (int k = 0; k < first; k++) step();
        CHECK(sh_stream_synchronize(model_.device, stream_));
        CHECK(sh_runtime_synchronize(model_.runtime));
        const sh_runtime_stats before = stats();
        Row row;
        row.ms = 1000 / static_cast<double>(count) * seconds([&] {
                     for (int k = 0; k < count; k++) step();
                     CHECK(sh_stream_synchronize(model_.device, stream_));
                     CHECK(sh_runtime_synchronize(model_.runtime));
                 });
        const sh_runtime_stats after = stats();
        row.in = static_cast<double>(after.bytes_to_device - before.bytes_to_device) / count;
        row.out = static_cast<double>(after.bytes_to_host - before.bytes_to_host) / count;
        row.helped = static_cast<double>(after.helped_bytes - before.helped_bytes) / count / (row.in + row.out);
        row.waits = after.host_waits - before.host_waits;
        return row;
    }

    // All changes must be in the sources, and nothing else.
    void compare(const char* truth) {
        CHECK(sh_write_back(model_.runtime, model_.blocks.data(), model_.blocks.size()));
        uint64_t at = 0;
        for (size_t i = 0; i < model_.blocks.size(); i++) {
            const bool changed = std::memcmp(memory_ + at, &stamps_[stamp(step_ - 1)], kStamp) == 0;
            const bool same = std::memcmp(memory_ + at + kStamp, truth + at + kStamp, model_.sizes[i] - kStamp) == 0;
            if (!changed || !same) {
                std::fprintf(stderr, "block %zu %s\n", i, changed ? "has other bytes" : "has lost a change");
                std::exit(1);
            }
            at += model_.sizes[i];
        }
    }

private:
    static constexpr int kSteps = 64;

    // A page for each step, on the device, so that the changes do not cross the link.
    void make_stamps() {
        for (int k = 0; k < kSteps; k++) stamps_.insert(stamps_.end(), kStamp, static_cast<char>(k + 1));
        CHECK(sh_alloc(model_.device, stamps_.size(), nullptr, &on_device_));
        CHECK(sh_stream_create(model_.device, &stream_));
        CHECK_STATUS(core_->backend().copy_to_device(stream_, on_device_, stamps_.data(), stamps_.size()));
        CHECK(sh_stream_synchronize(model_.device, stream_));
    }
    static size_t stamp(int step) { return static_cast<size_t>(step % kSteps) * kStamp; }
    sh_runtime_stats stats() const {
        sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
        CHECK(sh_runtime_get_stats(model_.runtime, &stats));
        return stats;
    }
    void step() {
        CHECK(sh_step_begin(model_.runtime));
        for (const sh_use& use : uses_) {
            sh_view view = SH_VIEW_INIT;
            CHECK(sh_acquire(model_.runtime, use.block, stream_, 0, &view));
            CHECK(sh_mark_dirty(model_.runtime, use.block));
            CHECK_STATUS(core_->backend().copy_on_device(stream_, reinterpret_cast<uint64_t>(view.address),
                                                         on_device_ + stamp(step_), kStamp));
            CHECK(sh_release(model_.runtime, use.block, stream_));
        }
        CHECK(sh_step_end(model_.runtime));
        step_++;
    }

    Model model_;
    char* const memory_;
    std::shared_ptr<stagehand::core::Device> core_;
    std::vector<char> stamps_;
    uint64_t on_device_ = 0;
    std::vector<sh_use> uses_;
    sh_stream stream_ = SH_STREAM_HOST;
    int step_ = 0;
};

}  // namespace

// Arguments: devices, the helped one first.
int main(int argc, char** argv) {
    std::vector<std::string> names(argv + 1, argv + argc);
    if (names.size() < 2) names = {"host:0", "host:1"};
    if (on_host(names[0])) stagehand::transfer::Bond::set_least_bytes(256 << 10);  // else the blocks are too small
    const Subjects subjects(names);
    char* const truth = subjects.allocate(subjects.total);
    std::memcpy(truth, subjects.memory, subjects.total);
    {
        sh_device* const device = open(names[0], subjects.total, "");
        const uint64_t bytes = subjects.total / 4;
        char* const back = subjects.allocate(bytes);
        const double own = raw_speed({names[0]}, truth, bytes, back), all = raw_speed(names, truth, bytes, back);
        sh_device_close(device);
        std::printf("raw copies in both directions at once, GB/s in each: own link %.1f, all links %.1f\n", own, all);
    }
    std::printf("budget  block MiB            step ms   in GB/s  out GB/s  x alone  helped  host waits\n");
    for (const double budget : {0.25, 0.5}) {
        for (const uint64_t count : {32, 128}) {
            double alone_ms = 0;
            for (const std::string& helpers : {std::string(), subjects.helpers}) {
                std::memcpy(subjects.memory, truth, subjects.total);
                const auto bytes = static_cast<uint64_t>(static_cast<double>(subjects.total) * budget);
                sh_device* const device = open(names[0], bytes, helpers);
                {
                    Changed changed(names[0], subjects.memory, subjects.total, count);
                    const Changed::Row row = changed.steps(4, 8);
                    changed.compare(truth);
                    if (helpers.empty()) alone_ms = row.ms;
                    std::printf("%4.0f %%  %9.1f  %-7s  %9.2f    %6.1f    %6.1f    %5.2f  %4.0f %%  %10llu\n",
                                budget * 100, static_cast<double>(subjects.total / count) / kMiB,
                                helpers.empty() ? "alone" : "helped", row.ms, row.in / row.ms / 1e6,
                                row.out / row.ms / 1e6, alone_ms / row.ms, row.helped * 100,
                                static_cast<unsigned long long>(row.waits));
                    std::fflush(stdout);
                }
                sh_device_close(device);
            }
        }
    }
}
