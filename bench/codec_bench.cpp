// Measures packing and unpacking on one core, for each format, with random weights and with random bits.
#include <random>

#include "../tests/unit/codec/weights.h"
#include "codec/frame.h"
#include "codec/packer.h"
#include "measure.h"

namespace {

using namespace stagehand::codec;

constexpr uint64_t kBytes = uint64_t(64) << 20;

// Weights of 8 bits are scaled to the range of their type, as models have them.
std::vector<uint8_t> weights_of(FloatFormat format) {
    const uint64_t bytes = fields_of(format).bytes();
    return test::weights(format, kBytes / bytes, 1, bytes == 1 ? 100.0f : 0.02f);
}

void run(const char* name, FloatFormat format, const std::vector<uint8_t>& contents) {
    std::vector<double> packing, unpacking;
    std::vector<uint8_t> frame, back(contents.size());
    Packer packer;  // keeps its memory, as for the tensors of a model
    for (int i = 0; i < 6; i++) {
        const double packed = bench::seconds([&] {
            CHECK(packer.pack(format, contents.data(), contents.size(), 1).code());
            frame.resize(packer.frame_bytes());
            packer.write(frame.data(), 1);
        });
        if (i == 0) continue;
        packing.push_back(packed);
        Frame opened;
        unpacking.push_back(bench::seconds([&] {
            CHECK(Frame::open(frame, &opened).code());
            CHECK(opened.unpack(0, back.size(), back.data()).code());
        }));
    }
    if (back != contents) std::exit(1);
    const auto gigabytes = static_cast<double>(contents.size()) / 1e9;
    std::printf("%-20s %6.4f  %6.2f  %6.2f\n", name,
                static_cast<double>(frame.size()) / static_cast<double>(contents.size()),
                gigabytes / bench::median(packing), gigabytes / bench::median(unpacking));
    std::fflush(stdout);
}

}  // namespace

int main() {
    std::printf("                      ratio    GB/s of contents: packing, unpacking\n");
    run("bf16", FloatFormat::bf16, weights_of(FloatFormat::bf16));
    run("fp16", FloatFormat::f16, weights_of(FloatFormat::f16));
    run("fp32", FloatFormat::f32, weights_of(FloatFormat::f32));
    run("fp8, e4m3", FloatFormat::f8_e4m3, weights_of(FloatFormat::f8_e4m3));
    run("fp8, e5m2", FloatFormat::f8_e5m2, weights_of(FloatFormat::f8_e5m2));
    std::mt19937_64 random(2);
    std::vector<uint8_t> bits(kBytes);
    for (uint8_t& byte : bits) byte = static_cast<uint8_t>(random());
    run("bf16, random bits", FloatFormat::bf16, bits);
}
