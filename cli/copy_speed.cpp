#include "copy_speed.h"

#include <algorithm>
#include <cstring>

#include "library.h"

namespace stagehand::cli {

namespace {

constexpr int repeats = 7;

// Large enough that starting a copy does not count, small enough to be done at once.
std::uint64_t copy_bytes(sh_device* device) {
    const sh_device_caps caps = device_capabilities(device);
    const sh_memory_info memory = device_memory(device);
    const std::uint64_t wanted = (caps.flags & SH_DEVICE_IS_GPU) != 0 ? std::uint64_t{256} << 20
                                                                       : std::uint64_t{64} << 20;
    const std::uint64_t left = memory.budget_bytes - std::min(memory.used_bytes, memory.budget_bytes);
    const std::uint64_t page = std::max<std::uint64_t>(memory.page_bytes, 1);
    const std::uint64_t half = left / 2 / page * page;
    return std::clamp(half, page, std::max(page, wanted));
}

double rate(std::uint64_t bytes, std::uint64_t ns) {
    return static_cast<double>(bytes) * 1e9 / static_cast<double>(std::max<std::uint64_t>(ns, 1));
}

// The speed of one load of the block.
double load_once(sh_device* device, sh_runtime* runtime, sh_block block, std::uint64_t bytes) {
    check(sh_invalidate_blocks(runtime, &block, 1), "copy speed");
    const std::uint64_t begin = device_clock_ns(device);
    sh_view view = SH_VIEW_INIT;
    check(sh_acquire(runtime, block, SH_STREAM_HOST, 0, &view), "copy speed");
    const std::uint64_t end = device_clock_ns(device);
    check(sh_release(runtime, block, SH_STREAM_HOST), "copy speed");
    return rate(bytes, end - begin);
}

}  // namespace

CopySpeed measure_copy_speed(sh_device* device) {
    CopySpeed speed;
    speed.bytes = copy_bytes(device);
    const HostMemory memory(device, speed.bytes);
    speed.pinned = memory.pinned();
    std::memset(memory.data(), 0x5a, memory.bytes());
    const Runtime runtime = create_runtime(device, "copy speed");

    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_POINTER;
    segment.bytes = speed.bytes;
    segment.pointer = memory.data();
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.flags = SH_BLOCK_WHOLE;
    desc.bytes = speed.bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    desc.name = "copy speed";
    sh_block block = 0;
    check(sh_register_blocks(runtime.get(), &desc, 1, &block), "copy speed");
    sh_use use = SH_USE_INIT;
    use.block = block;
    use.compute_ns = 1;
    check(sh_set_schedule(runtime.get(), &use, 1), "copy speed");

    // The first load also plans and maps.
    load_once(device, runtime.get(), block, speed.bytes);
    for (int i = 0; i < repeats; ++i) {
        speed.to_device_bytes_per_second =
            std::max(speed.to_device_bytes_per_second, load_once(device, runtime.get(), block, speed.bytes));
    }

    sh_view view = SH_VIEW_INIT;
    check(sh_acquire(runtime.get(), block, SH_STREAM_HOST, 0, &view), "copy speed");
    for (int i = 0; i < repeats; ++i) {
        const std::uint64_t begin = device_clock_ns(device);
        check(sh_read_block(runtime.get(), block, SH_STREAM_HOST, 0, memory.data(), speed.bytes), "copy speed");
        const std::uint64_t end = device_clock_ns(device);
        speed.to_host_bytes_per_second = std::max(speed.to_host_bytes_per_second, rate(speed.bytes, end - begin));
    }
    check(sh_release(runtime.get(), block, SH_STREAM_HOST), "copy speed");
    return speed;
}

}  // namespace stagehand::cli
