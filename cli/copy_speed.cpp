#include "copy_speed.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "library.h"

namespace stagehand::cli {

namespace {

constexpr const char* doing = "measuring the copy speed";
constexpr std::uint64_t in_flight = 4;  // blocks that have device memory at once
constexpr std::uint64_t enough_ns = 300'000'000;
constexpr int most_rounds = 6;

struct Sizes {
    std::uint64_t block = 0;
    std::uint64_t blocks = 0;
};

// Chooses blocks that are large enough that the start of a copy does not matter, if the budget allows that. `others`
// blocks must fit in addition to the blocks in flight.
Sizes sizes_for(sh_device* device, std::uint64_t others = 0) {
    const bool gpu = (device_capabilities(device).flags & SH_DEVICE_IS_GPU) != 0;
    const std::uint64_t largest = std::uint64_t{gpu ? 64U : 8U} << 20;
    const std::uint64_t total = std::uint64_t{gpu ? 512U : 64U} << 20;
    const sh_memory_info memory = device_memory(device);
    const std::uint64_t page = std::max<std::uint64_t>(memory.page_bytes, 1);
    // A budget may be more than the memory of the device.
    const std::uint64_t left =
        std::min(memory.headroom_bytes, memory.budget_bytes - std::min(memory.used_bytes, memory.budget_bytes));
    Sizes sizes;
    sizes.block = std::clamp(left / (in_flight + others) / page * page, page, std::max(page, largest));
    // A multiple of the blocks in flight, so that the first block follows the last one in the ring without a gap.
    sizes.blocks = std::clamp<std::uint64_t>(total / sizes.block / in_flight * in_flight, in_flight, 1024);
    return sizes;
}

double rate(std::uint64_t bytes, std::uint64_t ns) {
    return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<std::uint64_t>(ns, 1));
}

// A runtime whose blocks follow each other in `memory`.
class Probe {
public:
    Probe(sh_device* device, const Sizes& sizes, const HostMemory& memory)
        : device_(device), sizes_(sizes), memory_(static_cast<char*>(memory.data())) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.name = "copy speed";
        options.max_bytes = in_flight * sizes.block;
        // The whole memory is the ring, and nothing is resident, so that copies follow each other without a pause.
        options.max_held = static_cast<std::uint32_t>(in_flight);
        sh_runtime* runtime = nullptr;
        check(sh_runtime_create(device, &options, &runtime), doing);
        runtime_.reset(runtime);
        add_blocks();
        check(sh_plan(runtime, nullptr, nullptr), doing);
    }

    std::uint64_t total_bytes() const { return sizes_.block * sizes_.blocks; }

    // The nanoseconds that it takes to load all blocks, one after the other.
    std::uint64_t to_device() {
        check(sh_runtime_synchronize(runtime_.get()), doing);
        check(sh_invalidate_blocks(runtime_.get(), blocks_.data(), blocks_.size()), doing);
        const std::uint64_t begin = device_clock_ns(device_);
        std::uint64_t end = begin;
        check(sh_step_begin(runtime_.get(), nullptr), doing);
        for (const sh_block block : blocks_) {
            acquire(block);
            end = device_clock_ns(device_);
            release(block);
        }
        check(sh_step_end(runtime_.get()), doing);
        return end - begin;
    }

    // The nanoseconds of the way to the host: one block is read into the place of each block.
    std::uint64_t to_host() {
        acquire(blocks_.back());
        check(sh_runtime_synchronize(runtime_.get()), doing);
        const std::uint64_t begin = device_clock_ns(device_);
        for (std::uint64_t i = 0; i < sizes_.blocks; ++i) {
            check(sh_read_block(runtime_.get(), blocks_.back(), SH_STREAM_HOST, 0, memory_ + i * sizes_.block,
                                sizes_.block),
                  doing);
        }
        const std::uint64_t end = device_clock_ns(device_);
        release(blocks_.back());
        return end - begin;
    }

private:
    void add_blocks() {
        // Registered one by one, because blocks of less than two pages that are registered together are loaded
        // together. Whole blocks, so that each block is one copy.
        std::vector<sh_use> uses(sizes_.blocks, sh_use(SH_USE_INIT));
        for (std::uint64_t i = 0; i < sizes_.blocks; ++i) {
            blocks_.push_back(
                register_block(runtime_.get(), memory_ + i * sizes_.block, sizes_.block, SH_BLOCK_WHOLE, doing));
            uses[i].block = blocks_[i];
            uses[i].compute_ns = 1;
        }
        set_order(runtime_.get(), uses, doing);
    }

    void acquire(sh_block block) {
        auto view = sh_sized<sh_view>();
        check(sh_acquire(runtime_.get(), block, SH_STREAM_HOST, 0, &view), doing);
    }

    void release(sh_block block) { check(sh_release(runtime_.get(), block, SH_STREAM_HOST), doing); }

    sh_device* device_;
    Sizes sizes_;
    char* memory_;
    Runtime runtime_;
    std::vector<sh_block> blocks_;
};

// Reads one block to host memory repeatedly, on its own thread.
class Reader {
public:
    // The bytes of the block come from the beginning of `memory`, and are read back to all of `memory`.
    Reader(sh_device* device, std::uint64_t block_bytes, const HostMemory& memory)
        : device_(device), bytes_(block_bytes), memory_(memory), runtime_(create_runtime(device, "reading back")) {
        sh_use use = SH_USE_INIT;
        use.block = block_ = register_block(runtime_.get(), memory.data(), bytes_, 0, doing);
        use.compute_ns = 1;
        set_order(runtime_.get(), {use}, doing);
        auto view = sh_sized<sh_view>();
        check(sh_acquire(runtime_.get(), block_, SH_STREAM_HOST, 0, &view), doing);
        thread_ = std::thread([this] { work(); });
    }
    ~Reader() { join(); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Ends the thread. Returns the bytes per second of the reads that ended at or after `begin`.
    double rate_since(std::uint64_t begin) {
        join();
        if (error_) std::rethrow_exception(error_);
        const auto first = std::lower_bound(ends_.begin(), ends_.end(), begin);
        const auto reads = static_cast<std::uint64_t>(ends_.end() - first);
        return reads < 2 ? 0 : rate((reads - 1) * bytes_, ends_.back() - *first);
    }

private:
    void work() {
        try {
            char* const memory = static_cast<char*>(memory_.data());
            const std::uint64_t places = memory_.bytes() / bytes_;
            for (std::uint64_t i = 0; !stop_ || i < 3; ++i) {
                check(sh_read_block(runtime_.get(), block_, SH_STREAM_HOST, 0, memory + i % places * bytes_, bytes_),
                      doing);
                ends_.push_back(device_clock_ns(device_));
            }
        } catch (...) {
            error_ = std::current_exception();
        }
    }

    void join() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }

    sh_device* device_;
    std::uint64_t bytes_;
    const HostMemory& memory_;
    Runtime runtime_;
    sh_block block_ = 0;
    std::atomic<bool> stop_ = false;
    std::vector<std::uint64_t> ends_;
    std::exception_ptr error_;
    std::thread thread_;
};

// The best of a few rounds; fewer rounds if they take long. The first round warms up, unless it is long enough to
// count.
template <typename Round>
double best_rate(std::uint64_t bytes, Round round) {
    std::uint64_t spent = round();
    if (spent >= enough_ns) return rate(bytes, spent);
    double best = 0;
    for (int i = 0; i < most_rounds && (i == 0 || spent < enough_ns); ++i) {
        const std::uint64_t ns = round();
        best = std::max(best, rate(bytes, ns));
        spent += ns;
    }
    return best;
}

}  // namespace

std::optional<CopySpeed> measure_copy_speed(sh_device* device) {
    const Sizes sizes = sizes_for(device);
    if (in_flight * sizes.block > device_memory(device).budget_bytes) return std::nullopt;
    const HostMemory memory(device, sizes.block * sizes.blocks);
    // Memory that was never written may be a single page of zeros.
    std::memset(memory.data(), 0x5a, memory.bytes());
    Probe probe(device, sizes, memory);
    CopySpeed speed;
    speed.bytes = probe.total_bytes();
    speed.pinned = memory.pinned();
    speed.to_device_bytes_per_second = best_rate(speed.bytes, [&] { return probe.to_device(); });
    speed.to_host_bytes_per_second = best_rate(speed.bytes, [&] { return probe.to_host(); });
    return speed;
}

std::optional<BothWays> measure_both_ways(sh_device* device) {
    const Sizes sizes = sizes_for(device, 1);
    if ((in_flight + 1) * sizes.block > device_memory(device).budget_bytes) return std::nullopt;
    const HostMemory from(device, sizes.block * sizes.blocks);
    const HostMemory to(device, sizes.block * in_flight);
    std::memset(from.data(), 0x5a, from.bytes());
    std::memset(to.data(), 0x5a, to.bytes());
    Probe probe(device, sizes, from);
    probe.to_device();
    Reader reader(device, sizes.block, to);
    const std::uint64_t begin = device_clock_ns(device);
    std::uint64_t rounds = 0;
    std::uint64_t spent = 0;
    while (rounds == 0 || (rounds < most_rounds && spent < enough_ns)) {
        spent += probe.to_device();
        ++rounds;
    }
    BothWays speed;
    speed.to_device_bytes_per_second = rate(rounds * probe.total_bytes(), spent);
    speed.to_host_bytes_per_second = reader.rate_since(begin);
    return speed;
}

}  // namespace stagehand::cli
