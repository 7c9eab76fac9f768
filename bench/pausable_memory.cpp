#include "bench/pausable_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "bench/block_stream.h"

namespace stagehand::cli::bench {

namespace {

// Contents are copied and compared in pieces of at most this size. The pattern has twice as many bytes, and each piece
// gets the part of the pattern that begins at an offset of its own.
constexpr std::uint64_t piece_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t offset_unit = 64;
constexpr std::uint64_t offsets = piece_bytes / offset_unit;  // a power of two
// An odd factor, so that neighbours and rounds differ.
constexpr std::uint64_t spread = 0x9e3779b1;

// In the order of the addresses, so that the same piece gets other contents in every round.
std::uint64_t pattern_offset(std::uint64_t address, std::uint64_t round) {
    return (address / 512 * spread + round * 7919) % offsets * offset_unit;
}

void fill(const HostMemory& memory, bool weights) {
    std::mt19937_64 random(1);
    if (!weights) {
        auto* const words = static_cast<std::uint64_t*>(memory.data());
        std::generate(words, words + memory.bytes() / sizeof *words, random);
        return;
    }
    std::normal_distribution<float> normal(0, 0.02F);
    auto* const elements = static_cast<std::uint16_t*>(memory.data());
    std::generate(elements, elements + memory.bytes() / sizeof *elements, [&] {
        return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16U);  // cut to bf16
    });
}

}  // namespace

PausableMemory::PausableMemory(sh_device* device, const DeviceCopies& copies, const std::vector<std::uint64_t>& sizes,
                               const sh_alloc_options& options)
    : device_(device), copies_(copies), pattern_(device, 2 * piece_bytes), read_(device, piece_bytes) {
    fill(pattern_, options.format != 0);
    try {
        for (const std::uint64_t bytes : sizes) {
            std::uint64_t address = 0;
            check(sh_alloc(device, bytes, &options, &address), "allocating memory that pauses");
            parts_.push_back({address, bytes});
            bytes_ += bytes;
        }
    } catch (...) {
        free_all();
        throw;
    }
}

PausableMemory::~PausableMemory() { free_all(); }

void PausableMemory::free_all() noexcept {
    for (const Part& part : parts_) (void)sh_free(device_, part.address);  // a destructor cannot report it
}

template <typename Work>
void PausableMemory::for_each_piece(std::uint64_t part, Work work) const {
    const Part& of = parts_[part];
    const char* const pattern = static_cast<const char*>(pattern_.data());
    for (std::uint64_t at = 0; at < of.bytes; at += piece_bytes)
        work(of.address + at, pattern + pattern_offset(of.address + at, round_), std::min(piece_bytes, of.bytes - at));
}

void PausableMemory::write() {
    ++round_;
    for (std::uint64_t part = 0; part < parts_.size(); ++part) {
        for_each_piece(
            part, [&](std::uint64_t to, const char* from, std::uint64_t bytes) { copies_.to_device(to, from, bytes); });
    }
}

std::uint64_t PausableMemory::count_mismatches() const {
    std::uint64_t count = 0;
    for (std::uint64_t part = 0; part < parts_.size(); ++part) {
        bool equal = true;
        for_each_piece(part, [&](std::uint64_t from, const char* expected, std::uint64_t bytes) {
            copies_.to_host(read_.data(), from, bytes);
            equal = equal && std::memcmp(read_.data(), expected, bytes) == 0;
        });
        count += equal ? 0 : 1;
    }
    return count;
}

PausableMemory::Speed PausableMemory::measure_copies() const {
    constexpr int rounds = 4;
    constexpr int copies = 16;
    const Part& largest =
        *std::max_element(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.bytes < b.bytes; });
    const std::uint64_t bytes = std::min(largest.bytes, piece_bytes);
    const auto best = [&](auto copy) {
        double fastest = 0;
        for (int i = 0; i < rounds; ++i) {
            const std::uint64_t ns = elapsed_ns(device_, copy);
            fastest = std::max(fastest, static_cast<double>(copies * bytes) * 1e9 / static_cast<double>(ns + 1));
        }
        return fastest;
    };
    Speed speed;
    speed.to_host = best([&] { copies_.to_host(read_.data(), largest.address, bytes, copies); });
    speed.to_device = best([&] { copies_.to_device(largest.address, read_.data(), bytes, copies); });
    return speed;
}

sh_occupancy_info PausableMemory::info() const {
    auto info = sh_sized<sh_occupancy_info>();
    check(sh_occupancy_get_info(device_, nullptr, &info), "reading the state of memory that pauses");
    return info;
}

}  // namespace stagehand::cli::bench
