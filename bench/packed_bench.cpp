// Compares steps over plain weights with steps over the same weights packed, in pinned memory or in files: while the
// copies bound the step, where both are equal, and while computing does. Every byte of some blocks is compared after
// each row.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "../tests/unit/codec/weights.h"
#include "codec/frame.h"
#include "measure.h"

namespace {

using namespace bench;
namespace codec = stagehand::codec;

// Random weights of bf16, which repeat after some MiB.
std::vector<uint8_t> weights_of(uint64_t bytes) {
    const uint64_t unique = std::min<uint64_t>(bytes, 48 << 20);
    std::vector<uint8_t> all = codec::test::weights(codec::FloatFormat::bf16, unique / 2, 1);
    all.resize(bytes);
    for (uint64_t at = unique; at < bytes; at += unique) std::memcpy(&all[at], &all[0], std::min(unique, bytes - at));
    return all;
}

// A tensor in pinned memory, plain and packed, and in files if they are wanted.
struct Tensor {
    Tensor(sh_device* on, uint64_t bytes, bool in_files) : device(on) {
        const std::vector<uint8_t> weights = weights_of(bytes);
        std::vector<uint8_t> frame;
        CHECK(codec::pack_frame(codec::FloatFormat::bf16, weights.data(), bytes, 8, &frame).code());
        plain = pinned(weights);
        packed = pinned(frame);
        plain_bytes = bytes;
        packed_bytes = frame.size();
        if (!in_files) return;
        plain_file = file_of(weights.data(), weights.size());
        packed_file = file_of(frame.data(), frame.size());
    }
    ~Tensor() {
        CHECK(sh_host_free(device, plain));
        CHECK(sh_host_free(device, packed));
    }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    void* pinned(const std::vector<uint8_t>& bytes) const {
        void* memory = nullptr;
        CHECK(sh_host_alloc(device, bytes.size(), &memory, nullptr));
        return std::memcpy(memory, bytes.data(), bytes.size());
    }

    sh_device* device;
    void *plain = nullptr, *packed = nullptr;
    uint64_t plain_bytes = 0, packed_bytes = 0;
    File plain_file{nullptr, std::fclose}, packed_file{nullptr, std::fclose};
};

void add(Model& model, const std::vector<const Tensor*>& tensors, bool packed) {
    for (const Tensor* tensor : tensors) {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.kind = SH_SOURCE_POINTER;
        segment.pointer = packed ? tensor->packed : tensor->plain;
        if (const File& file = packed ? tensor->packed_file : tensor->plain_file) {
            segment.kind = SH_SOURCE_FILE;
            segment.file = fileno(file.get());
        }
        segment.bytes = tensor->plain_bytes;
        segment.packed_bytes = packed ? tensor->packed_bytes : 0;
        model.add(segment);
    }
}

struct Row {
    double ms = 0, plan_ms = 0, bound_ms = 0, link_gb = 0, kept_gb = 0;
};

Row run(const char* name, const std::vector<const Tensor*>& tensors, bool packed, double compute_ms) {
    Model model(name, SH_DEVICE_OPTIONS_INIT);
    add(model, tensors, packed);
    const std::vector<sh_use> uses = model.schedule(static_cast<uint64_t>(compute_ms * 1e6), false);
    auto plan = sh_sized<sh_plan_info>();
    CHECK(sh_plan(model.runtime, nullptr, &plan));
    sh_stream stream = SH_STREAM_HOST;
    CHECK(sh_stream_create(model.device, &stream));
    Row row = {model.steps_ms(uses, stream, 3, 8), static_cast<double>(plan.step_ns) / 1e6,
               static_cast<double>(plan.bound_ns) / 1e6, static_cast<double>(plan.link_bytes_per_second) / 1e9,
               static_cast<double>(plan.packed_resident_bytes) / 1e9};
    sh_stream_destroy(model.device, stream);
    for (size_t i = 0; i < tensors.size(); i += 13) model.compare(i, tensors[i]->plain);
    return row;
}

}  // namespace

int main(int argc, char** argv) {
    const char* const name = argc > 1 ? argv[1] : "host";
    const bool on_host = std::strcmp(name, "host") == 0;
    // The matrices of a model with 8 billion weights, or a 32nd of them. The first and the last one are used in parts.
    const uint64_t mib = (uint64_t(1) << 20) / (on_host ? 32 : 1), parts = 8;
    const uint64_t sizes[] = {32 * mib, 8 * mib, 8 * mib, 32 * mib, 112 * mib, 112 * mib, 112 * mib};
    const uint64_t layers = 32, end = 1002 * mib / parts;
    const uint64_t total = layers * 416 * mib + 2 * parts * end;
    const PacedDevice subject(name, total, 64 << 10, 2 << 20, true);
    const bool in_files = argc > 2 && std::strcmp(argv[2], "file") == 0;
    std::map<uint64_t, std::unique_ptr<Tensor>> made;
    const auto tensor_of = [&](uint64_t bytes) {
        std::unique_ptr<Tensor>& tensor = made[bytes];
        if (!tensor) tensor = std::make_unique<Tensor>(subject.device, bytes, in_files);
        return tensor.get();
    };
    std::vector<const Tensor*> tensors(parts, tensor_of(end));
    for (uint64_t layer = 0; layer < layers; layer++)
        for (const uint64_t bytes : sizes) tensors.push_back(tensor_of(bytes));
    tensors.insert(tensors.end(), parts, tensor_of(end));
    const double part = static_cast<double>(tensors[0]->packed_bytes) / static_cast<double>(tensors[0]->plain_bytes);
    std::printf("%.1f GB of weights, packed %.4f\n", static_cast<double>(total) / 1e9, part);
    std::printf("budget  compute ms   plain ms   packed ms  (planned)  (bound)  plain / packed   kept packed GB\n");
    for (const double budget : {0.25, 0.5, 0.65, 0.8}) {
        CHECK(sh_device_set_budget(subject.device, static_cast<uint64_t>(static_cast<double>(total) * budget)));
        const double streamed = static_cast<double>(total) * (1 - budget);
        const double copy_ms = streamed / run(name, tensors, false, 0.1).link_gb / 1e6;
        for (const double compute : {0.0, 0.25, 0.5, 1.0, 2.0}) {
            const double compute_ms = std::max(copy_ms * compute, 0.1);
            const Row plain = run(name, tensors, false, compute_ms), packed = run(name, tensors, true, compute_ms);
            std::printf("%4.0f %%   %9.2f  %9.2f   %9.2f  %9.2f  %7.2f        %8.3f       %8.2f\n", budget * 100,
                        compute_ms, plain.ms, packed.ms, packed.plan_ms, packed.bound_ms, plain.ms / packed.ms,
                        packed.kept_gb);
            std::fflush(stdout);
        }
    }
}
