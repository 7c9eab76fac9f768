// Compares steps whose weights come over the links of several devices with steps over the device's own link, and both
// with raw copies to all devices at once. Then a helper streams for itself, alone and while the other device would like
// its help. Every byte of some blocks is compared after each row.
#include <atomic>
#include <thread>

#include "../tests/unit/codec/weights.h"
#include "codec/frame.h"
#include "subjects.h"
#include "transfer/carrier/carrier.h"

namespace {

using namespace bench;

// The sources of a model's blocks, and their contents.
struct Weights {
    const char* name = nullptr;
    std::vector<sh_segment> segments;
    std::vector<const char*> contents;

    void add(const sh_segment& segment, const char* bytes) {
        segments.push_back(segment);
        contents.push_back(bytes);
    }
    uint64_t bytes() const {
        uint64_t sum = 0;
        for (const sh_segment& segment : segments) sum += segment.bytes;
        return sum;
    }
};

// Blocks of these sizes that follow one another in memory, or in a file with the same bytes.
Weights plain_weights(const char* name, const std::vector<uint64_t>& sizes, const char* memory, int file = -1) {
    Weights weights{name, {}, {}};
    uint64_t at = 0;
    for (const uint64_t size : sizes) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = file < 0 ? SH_SOURCE_POINTER : SH_SOURCE_FILE;
        segment.pointer = memory + at;
        segment.file = file;
        segment.file_offset = file < 0 ? 0 : at;
        segment.bytes = size;
        weights.add(segment, memory + at);
        at += size;
    }
    return weights;
}

struct Row {
    double ms = 0, copied = 0, helped = 0, plan_ms = 0;  // `copied`: bytes of a step
    uint64_t waits = 0;
};

// A model that is streamed, on a device that is open.
class Streamed {
public:
    Streamed(const std::string& name, const Weights& weights, double compute_ms)
        : model_(name.c_str(), SH_DEVICE_OPTIONS_INIT), weights_(weights) {
        for (const sh_segment& segment : weights.segments) model_.add(segment);
        uses_ = model_.schedule(static_cast<uint64_t>(compute_ms * 1e6), false);
        CHECK(sh_plan(model_.runtime, nullptr, &plan_));
        CHECK(sh_stream_create(model_.device, &stream_));
    }
    ~Streamed() { sh_stream_destroy(model_.device, stream_); }

    Row steps(int first, int count) {
        if (first) (void)model_.steps_ms(uses_, stream_, 0, first);
        const sh_runtime_stats before = stats();
        Row row;
        row.ms = model_.steps_ms(uses_, stream_, 0, count);
        const sh_runtime_stats after = stats();
        const double bytes = static_cast<double>(after.bytes_to_device - before.bytes_to_device);
        row.copied = bytes / count;
        row.helped = static_cast<double>(after.helped_bytes - before.helped_bytes) / bytes;
        row.plan_ms = static_cast<double>(plan_.step_ns) / 1e6;
        row.waits = after.host_waits - before.host_waits;
        for (size_t i = 0; i < weights_.contents.size(); i += 5) model_.compare(i, weights_.contents[i]);
        return row;
    }

private:
    sh_runtime_stats stats() const {
        auto stats = sh_sized<sh_runtime_stats>();
        CHECK(sh_runtime_get_stats(model_.runtime, &stats));
        return stats;
    }

    Model model_;
    const Weights& weights_;
    std::vector<sh_use> uses_;
    sh_plan_info plan_ = sh_sized<sh_plan_info>();
    sh_stream stream_ = SH_STREAM_HOST;
};

// Blocks of one bf16 tensor of 112 MiB, plain or packed.
Weights tensor_weights(const Subjects& subjects, bool packed) {
    using namespace stagehand::codec;
    const uint64_t bytes = 112 * kMiB / subjects.scale;
    const std::vector<uint8_t> some = test::weights(FloatFormat::bf16, kMiB, 1);
    std::vector<uint8_t> contents, frame;
    while (contents.size() < bytes) contents.insert(contents.end(), some.begin(), some.end());
    CHECK_STATUS(pack_frame(FloatFormat::bf16, contents.data(), bytes, 8, &frame));
    char* const plain = subjects.allocate(bytes + frame.size());
    std::memcpy(plain, contents.data(), bytes);
    std::memcpy(plain + bytes, frame.data(), frame.size());
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.pointer = packed ? plain + bytes : plain;
    segment.bytes = bytes;
    segment.packed_bytes = packed ? frame.size() : 0;
    Weights weights{"packed", {}, {}};
    for (uint64_t at = 0; at + bytes <= subjects.total; at += bytes) weights.add(segment, plain);
    return weights;
}

// The weights over the own link, and then, as `helped`, over all links.
void compare_steps(const Subjects& subjects, const Weights& plain, const Weights& helped) {
    const std::string& name = subjects.names[0];
    for (const double budget : {0.25, 0.5}) {
        for (const double compute : {0.0, 1.0, 2.0}) {
            const auto bytes = static_cast<uint64_t>(static_cast<double>(plain.bytes()) * budget);
            const double streamed = static_cast<double>(plain.bytes() - bytes);
            const double compute_ms = std::max(streamed / subjects.sum / 1e6 * compute, 0.001);
            sh_device* device = open(name, bytes, "");
            const Row before = Streamed(name, plain, compute_ms).steps(3, 6);
            sh_device_close(device);
            device = open(name, bytes, subjects.helpers);
            const Row row = Streamed(name, helped, compute_ms).steps(3, 6);
            sh_device_close(device);
            const double copied = row.copied / row.ms / 1e6, weights = streamed / row.ms / 1e6;
            std::printf(
                "%-9s %4.0f %%  %10.2f  %9.2f  %9.2f %9.2f     %6.1f       %5.3f         %6.1f        %5.2f    %4.0f "
                "%%  "
                "%10llu\n",
                plain.name, budget * 100, compute_ms, before.ms, row.ms, row.plan_ms, copied, copied / subjects.sum,
                weights, weights / subjects.links[0], row.helped * 100, static_cast<unsigned long long>(row.waits));
            std::fflush(stdout);
        }
    }
}

// The first helper streams a model of its own, alone and while the device would like its help.
void compare_helper(const Subjects& subjects, const Weights& weights) {
    const std::string &name = subjects.names[0], &helper = subjects.names[1];
    CHECK(sh_device_set_budget(subjects.open_helpers[0], subjects.total / 2));
    Streamed own(helper, weights, 0.001);
    const Row alone = own.steps(3, 10);
    sh_device* const device = open(name, subjects.total / 4, subjects.helpers);
    Row beside, wished;
    {
        Streamed wishing(name, weights, 0.001);
        std::atomic<bool> stop = false;
        std::thread other([&] {
            while (!stop) wished = wishing.steps(0, 4);
        });
        beside = own.steps(3, 10);
        stop = true;
        other.join();
    }
    sh_device_close(device);
    std::printf(
        "%s streams for itself: %.2f ms a step alone, %.2f ms while %s would like its help (%.3f), helped %.0f %%\n",
        helper.c_str(), alone.ms, beside.ms, name.c_str(), beside.ms / alone.ms, wished.helped * 100);
}

}  // namespace

// Arguments: devices, the helped one first, and the rows that are wanted if not all are.
int main(int argc, char** argv) {
    std::vector<std::string> names, wanted;
    for (int i = 1; i < argc; i++) (std::strchr(argv[i], ':') ? names : wanted).emplace_back(argv[i]);
    if (names.size() < 2) names = {"host:0", "host:1"};
    const auto wants = [&](const char* row) {
        return wanted.empty() || std::find(wanted.begin(), wanted.end(), row) != wanted.end();
    };
    const Subjects subjects(names);
    const std::vector<uint64_t> layers(32, subjects.total / 32);
    std::vector<uint64_t> matrices;
    for (int i = 0; i < 32; i++)
        for (const uint64_t mib : {32, 8, 8, 32, 112, 112, 112}) matrices.push_back(mib * kMiB / subjects.scale);
    const Weights whole = plain_weights("layers", layers, subjects.memory);
    std::printf(
        "blocks    budget  compute ms   plain ms  helped ms (planned)  link GB/s  of the sum  weights GB/s  x own link "
        " "
        "helped  host waits\n");
    if (wants("layers")) compare_steps(subjects, whole, whole);
    for (const auto& [name, sizes] :
         {std::pair("matrices", matrices),
          std::pair("small", std::vector<uint64_t>(subjects.total / (8 * kMiB), 8 * kMiB))}) {
        const Weights weights = plain_weights(name, sizes, subjects.memory);
        if (wants(name)) compare_steps(subjects, weights, weights);
    }
    if (wants("file")) {
        const File file = file_of(subjects.memory, subjects.total);
        const Weights weights = plain_weights("file", layers, subjects.memory, fileno(file.get()));
        compare_steps(subjects, weights, weights);
    }
    if (wants("packed")) compare_steps(subjects, tensor_weights(subjects, false), tensor_weights(subjects, true));
    if (wants("helper")) compare_helper(subjects, whole);
}
