// Memory that leaves the device and comes back: the times of sh_pause() and of sh_resume(), compared with the link.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "bench/cuda_driver.h"
#include "bench/group.h"
#include "bench/pausable_memory.h"
#include "model/quantity.h"
#include "units.h"

namespace stagehand::cli::bench {

namespace {

constexpr std::uint64_t kinds = 8;  // of cycles, for each shape
constexpr int slow_cycles = 2;      // of the kinds that pin host memory, which takes seconds

struct TensorShape {
    std::string name;
    std::vector<std::uint64_t> sizes;
};

// The tensors of an 8B Llama in bf16: an embedding, nine tensors in each of 32 layers, a norm, a head.
std::vector<std::uint64_t> llama_sizes(double scale) {
    constexpr std::uint64_t width = 4096, key_width = 1024, inner = 14336, words = 128256, bytes = 2, layers = 32;
    constexpr std::uint64_t square = width * width * bytes, narrow = width * key_width * bytes;
    constexpr std::uint64_t wide = width * inner * bytes, norm = width * bytes, table = words * width * bytes;
    std::vector<std::uint64_t> sizes = {table};
    for (std::uint64_t layer = 0; layer < layers; ++layer)
        for (const std::uint64_t tensor : {square, narrow, narrow, square, wide, wide, wide, norm, norm})
            sizes.push_back(tensor);
    sizes.insert(sizes.end(), {norm, table});
    for (std::uint64_t& size : sizes) size = scaled_bytes(size, scale);
    return sizes;
}

// As a quantized model of experts has them: tensors of all sizes up to 40 MB, few of which fill their pages.
std::vector<std::uint64_t> odd_sizes(std::uint64_t bytes) {
    constexpr std::uint64_t count = 854, steps = 61, stride = 37;  // each size comes once in `steps`
    const std::uint64_t unit = std::max<std::uint64_t>(bytes / (count * (steps + 1) / 2), 1);
    std::vector<std::uint64_t> sizes(count);
    for (std::uint64_t i = 0; i < count; ++i) sizes[i] = unit * (1 + i * stride % steps) - i % unit;
    return sizes;
}

// Pieces of 1 MiB keep their size, because their size is what is measured.
std::vector<TensorShape> shapes_of(std::uint64_t bytes) {
    const double scale = static_cast<double>(bytes) / static_cast<double>(natural_occupancy_bytes);
    const std::uint64_t eighth = std::max(bytes / 8 / (2 * mib), std::uint64_t{1}) * 2 * mib;
    std::vector<TensorShape> shapes;
    shapes.push_back({fmt::format("8 x {}", model::format_bytes(eighth)), std::vector<std::uint64_t>(8, eighth)});
    std::vector<std::uint64_t> llama = llama_sizes(scale);
    shapes.push_back({fmt::format("{} tensors of 8B", llama.size()), std::move(llama)});
    std::vector<std::uint64_t> odd = odd_sizes(bytes);
    shapes.push_back({fmt::format("{} odd sizes", odd.size()), std::move(odd)});
    shapes.push_back(
        {fmt::format("{} x 1 MiB", count_text(bytes / mib)), std::vector<std::uint64_t>(bytes / mib, mib)});
    return shapes;
}

// Asks the driver for its free memory again and again while the object exists.
class LowestFree {
public:
    explicit LowestFree(sh_device* device)
        : lowest_(device_memory(device).free_bytes), thread_([this, device] {
              // The last look comes after the end, because a busy host may let this thread miss all before.
              for (bool last = false; !last;) {
                  last = stop_;
                  auto info = sh_sized<sh_memory_info>();
                  if (sh_device_get_memory(device, &info) == SH_OK)
                      lowest_ = std::min<std::uint64_t>(lowest_, info.free_bytes);
                  if (!last) std::this_thread::sleep_for(std::chrono::microseconds(500));
              }
          }) {}
    ~LowestFree() { end(); }
    LowestFree(const LowestFree&) = delete;
    LowestFree& operator=(const LowestFree&) = delete;

    std::uint64_t end() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
        return lowest_;
    }

private:
    std::atomic<std::uint64_t> lowest_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

// The times of one kind of cycle.
struct Cycles {
    std::vector<double> release_ns;
    std::vector<double> resume_ns;
    std::uint64_t released_bytes = 0;  // copied in the last cycle
    std::uint64_t resumed_bytes = 0;
    std::uint64_t packed_bytes = 0;  // of the resumed ones
};

// Measures one shape.
class Cycler {
public:
    Cycler(Bench& bench, const DeviceCopies& copies, const TensorShape& shape, const sh_alloc_options& options)
        : bench_(bench),
          free_before_(device_memory(bench.device).free_bytes),
          memory_(bench.device, copies, shape.sizes, options),
          footprint_(memory_.info().device_bytes) {
        memory_.write();
    }

    // A pause and a resume. `contents` is as in sh_pause_options.
    void cycle(std::uint32_t contents, Cycles* times) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.contents = contents;
        const std::uint64_t used = device_memory(bench_.device).free_bytes;
        auto released = sh_sized<sh_occupancy_change>();
        check(sh_pause(bench_.device, &options, &released), "releasing memory");
        const std::uint64_t freed = device_memory(bench_.device).free_bytes;
        freed_ratio_ = std::min(freed_ratio_, ratio(freed - std::min(freed, used)));
        const sh_occupancy_info info = memory_.info();
        host_ratio_ =
            std::max(host_ratio_, static_cast<double>(info.host_bytes) / static_cast<double>(memory_.bytes()));
        pinned_ = pinned_ && info.pinned_bytes == info.host_bytes;
        auto resumed = sh_sized<sh_occupancy_change>();
        check(sh_resume(bench_.device, nullptr, &resumed), "resuming memory");
        times->release_ns.push_back(static_cast<double>(released.ns));
        times->resume_ns.push_back(static_cast<double>(resumed.ns));
        times->released_bytes = released.copied_bytes;
        times->resumed_bytes = resumed.copied_bytes;
        times->packed_bytes = resumed.packed_bytes;
    }

    // Ends the command with an error if contents are not what was written.
    void compare() {
        if (const std::uint64_t wrong = memory_.count_mismatches(); wrong != 0) {
            throw CommandError(ExitCode::failure, fmt::format("{} of {} allocations came back with other contents",
                                                              wrong, memory_.allocations()));
        }
        ++compared_;
    }

    // Lets the library pin host memory for a second, or until all of it is pinned.
    void prepare() {
        constexpr int milliseconds = 1000;
        check(sh_occupancy_trim(bench_.device, nullptr), "freeing host memory");
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.flags = SH_OCCUPANCY_PREPARE;
        check(sh_pause(bench_.device, &options, nullptr), "pinning host memory in the background");
        for (int i = 0; i < milliseconds && memory_.info().host_bytes < footprint_; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    // The most device memory during a resume, in a cycle of its own: asking the driver takes time.
    void watch_resume() {
        check(sh_pause(bench_.device, nullptr, nullptr), "releasing memory");
        LowestFree lowest(bench_.device);
        check(sh_resume(bench_.device, nullptr, nullptr), "resuming memory");
        const std::uint64_t least = lowest.end();
        peak_ratio_ = ratio(free_before_ - std::min(least, free_before_));
        compare();
    }

    PausableMemory& memory() { return memory_; }
    std::uint64_t footprint() const { return footprint_; }
    double freed_ratio() const { return freed_ratio_; }
    double peak_ratio() const { return peak_ratio_; }
    double host_ratio() const { return host_ratio_; }
    bool pinned() const { return pinned_; }
    std::uint64_t compared() const { return compared_; }

private:
    double ratio(std::uint64_t bytes) const { return static_cast<double>(bytes) / static_cast<double>(footprint_); }

    Bench& bench_;
    std::uint64_t free_before_;
    PausableMemory memory_;
    std::uint64_t footprint_;
    double freed_ratio_ = 1;
    double peak_ratio_ = 0;
    double host_ratio_ = 0;
    bool pinned_ = true;
    std::uint64_t compared_ = 0;
};

// The rows of one shape.
class Rows {
public:
    Rows(const TensorShape& shape, const PausableMemory::Speed& link, GroupReport& report)
        : shape_(shape), link_(link), report_(report) {}

    void add(Cycler& of, const char* kind, const Cycles& cycles) {
        const auto bytes = static_cast<double>(of.memory().bytes());
        add_row(of, fmt::format("{}: release, {}", shape_.name, kind), cycles.release_ns, bytes / link_.to_host,
                {{"copied_bytes", cycles.released_bytes}});
        add_row(of, fmt::format("{}: resume, {}", shape_.name, kind), cycles.resume_ns, bytes / link_.to_device,
                {{"copied_bytes", cycles.resumed_bytes}, {"packed_bytes", cycles.packed_bytes}});
    }

    // The figures of the shape, which are known at the end.
    void complete(const Cycler& of) {
        for (std::size_t i = first_; i < report_.rows.size(); ++i) {
            Json& more = report_.rows[i].more;
            more["freed_ratio"] = of.freed_ratio();
            more["peak_ratio"] = of.peak_ratio();
            more["host_ratio"] = of.host_ratio();
            more["compared_cycles"] = of.compared();
            more["pinned"] = of.pinned();
        }
        if (first_ < report_.rows.size()) {
            report_.rows[first_].remark =
                fmt::format("freed {:.4f}, peak {:.4f} of {}; host {:.4f}", of.freed_ratio(), of.peak_ratio(),
                            model::format_bytes(of.footprint()), of.host_ratio());
        }
    }

private:
    void add_row(Cycler& of, std::string name, const std::vector<double>& ns, double link_seconds, const Json& more) {
        Row row = {std::move(name), Unit::seconds, median(ns) / 1e9, link_seconds, "all bytes / pinned link"};
        const auto [shortest, longest] = std::minmax_element(ns.begin(), ns.end());
        row.remark = fmt::format("{} of the link", ratio_text(row.limit, row.value));
        row.more = {{"shape", shape_.name},
                    {"allocations", of.memory().allocations()},
                    {"bytes", of.memory().bytes()},
                    {"footprint_bytes", of.footprint()},
                    {"cycles", ns.size()},
                    {"shortest_seconds", *shortest / 1e9},
                    {"longest_seconds", *longest / 1e9},
                    {"ratio_to_link", row.value > 0 ? row.limit / row.value : 0}};
        row.more.update(more);
        report_.rows.push_back(std::move(row));
    }

    const TensorShape& shape_;
    const PausableMemory::Speed& link_;
    GroupReport& report_;
    const std::size_t first_ = report_.rows.size();
};

// The faster of the speeds that this run has measured.
PausableMemory::Speed link_of(const Bench& bench, const DeviceCopies& copies, const PausableMemory& memory) {
    PausableMemory::Speed link{bench.link.limit(), bench.link.to_host};
    if (!copies.by_processor()) {
        const PausableMemory::Speed raw = memory.measure_copies();
        link.to_device = std::max(link.to_device, raw.to_device);
        link.to_host = std::max(link.to_host, raw.to_host);
    }
    return link;
}

// The kinds of cycle of one shape, in memory of one sort.
class Kinds {
public:
    Kinds(Bench& bench, const TensorShape& shape, Cycler& cycler, Rows& rows, std::uint64_t first_step)
        : bench_(bench), shape_(shape), cycler_(cycler), rows_(rows), step_(first_step) {}

    // Contents are compared after the last cycle, because a comparison takes longer than the cycle.
    template <typename Before>
    void measure(const char* kind, std::uint32_t contents, int count, Before before) {
        Cycles cycles;
        for (int i = 0; i < count && !stopped(); ++i) {
            before();
            cycler_.cycle(contents, &cycles);
        }
        if (!cycles.release_ns.empty()) rows_.add(cycler_, kind, cycles);
        if (contents == SH_CONTENTS_DEFAULT && !stopped()) cycler_.compare();
        bench_.progress.step(step_++, fmt::format("{}, {}", shape_.name, kind));
    }

private:
    Bench& bench_;
    const TensorShape& shape_;
    Cycler& cycler_;
    Rows& rows_;
    std::uint64_t step_;
};

// Returns the link that the rows compare with.
PausableMemory::Speed measure_changing(Bench& bench, const DeviceCopies& copies, const TensorShape& shape,
                                       std::uint64_t first_step, GroupReport& report) {
    Cycler cycler(bench, copies, shape, SH_ALLOC_OPTIONS_INIT);
    const PausableMemory::Speed link = link_of(bench, copies, cycler.memory());
    cycler.memory().write();  // the measurement of the link has left other contents
    Rows rows(shape, link, report);
    Kinds kinds(bench, shape, cycler, rows, first_step);
    kinds.measure("nothing pinned before", SH_CONTENTS_DEFAULT, slow_cycles,
                  [&] { check(sh_occupancy_trim(bench.device, nullptr), "freeing host memory"); });
    kinds.measure("pinned for a second", SH_CONTENTS_DEFAULT, slow_cycles, [&] { cycler.prepare(); });
    kinds.measure("contents changed", SH_CONTENTS_DEFAULT, bench.steps(), [&] { cycler.memory().write(); });
    kinds.measure("contents unchanged", SH_CONTENTS_DEFAULT, bench.steps(), [] {});
    if (!stopped()) cycler.watch_resume();
    kinds.measure("contents dropped", SH_CONTENTS_DROP, bench.steps(), [] {});
    rows.complete(cycler);
    if (!cycler.pinned() && report.notes.empty()) report.notes.push_back(unpinned_note(cycler.footprint()));
    return link;
}

// A kind of cycle of measure_more(), and whether contents change before each cycle.
struct MoreCycles {
    const char* kind;
    bool write;
};

// Memory of another sort than measure_changing() measures.
void measure_more(Bench& bench, const DeviceCopies& copies, const TensorShape& shape, const PausableMemory::Speed& link,
                  std::uint64_t first_step, GroupReport& report, const sh_alloc_options& options,
                  std::initializer_list<MoreCycles> list) {
    if (stopped()) return;
    Cycler cycler(bench, copies, shape, options);
    Cycles first;  // pins host memory, and brings constant contents to it
    cycler.cycle(SH_CONTENTS_DEFAULT, &first);
    Rows rows(shape, link, report);
    Kinds kinds_of(bench, shape, cycler, rows, first_step);
    for (const MoreCycles& cycles : list)
        kinds_of.measure(cycles.kind, SH_CONTENTS_DEFAULT, bench.steps(), [&] {
            if (cycles.write) cycler.memory().write();
        });
    if (!stopped()) cycler.watch_resume();
    rows.complete(cycler);
}

}  // namespace

void measure_occupancy(Bench& bench, GroupReport& report) {
    std::string reason;
    const std::unique_ptr<DeviceCopies> copies = DeviceCopies::open(bench.device, &reason);
    const bool leaves = (device_capabilities(bench.device).flags & SH_DEVICE_FIXED_ADDRESSES) != 0;
    if (!copies || !leaves) {
        report.about = "memory that leaves the device and comes back";
        report.notes.push_back(
            fmt::format("left out: {}", leaves ? reason : "the device does not map memory by pages"));
        return;
    }
    const BudgetChange budget(bench.device);
    budget.set(device_memory(bench.device).page_bytes);  // frees the pages that earlier models have left
    budget.set(0);
    const std::vector<TensorShape> shapes = shapes_of(bench.extent.occupancy);
    report.about = fmt::format("{} of device memory at most", model::format_bytes(bench.extent.occupancy));
    bench.progress.begin(report.name, shapes.size() * kinds, 1);
    sh_alloc_options constant = SH_ALLOC_OPTIONS_INIT, weights = SH_ALLOC_OPTIONS_INIT;
    constant.flags = SH_ALLOC_CONST;  // contents never change, as the engine promises
    weights.format = SH_FORMAT_BF16;  // weights cross the link packed where the device packs
    for (std::size_t i = 0; i < shapes.size() && !stopped(); ++i) {
        const PausableMemory::Speed link = measure_changing(bench, *copies, shapes[i], i * kinds, report);
        measure_more(bench, *copies, shapes[i], link, (i + 1) * kinds - 3, report, constant,
                     {{"constant contents", false}});
        measure_more(bench, *copies, shapes[i], link, (i + 1) * kinds - 2, report, weights,
                     {{"weights packed", true}, {"weights packed, unchanged", false}});
    }
}

}  // namespace stagehand::cli::bench
