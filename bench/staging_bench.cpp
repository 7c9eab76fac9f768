// Compares the speed of the staging engine with the same number of threads that only call memcpy.
//
// The device's copies do nothing here, or only take time on its clock. A GPU's copy engine copies by itself, but a real
// copy on this machine's processors would measure their memory a second time. So the first table shows the cost of the
// staging engine beside the reading of the sources. The second table shows whether the engine keeps a link of a given
// speed busy.
//
// There are two kinds of memcpy. "plain" copies the bytes to memory of their own size, like a program without the
// engine. "to slots" copies them over and over into buffers of the engine's size, which the processor's cache holds.
// This is the engine's own pattern without the engine, and the harder comparison.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "measure.h"
#include "platform/host_memory.h"
#include "transfer/source/reader.h"
#include "transfer/staging/staging_engine.h"

namespace {

using stagehand::BackendDevice;
using stagehand::Status;
using stagehand::transfer::Source;
using stagehand::transfer::StagedLoad;
using stagehand::transfer::StagingEngine;

constexpr uint64_t kBytes = 512 << 20;
constexpr uint64_t kLoadBytes = 32 << 20;
constexpr int kRounds = 7;

// Ends the benchmark with the text of the failure.
void require(const Status& status, const char* what) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s: %s\n", what, status.text());
    std::exit(1);
}

// A device whose copies do no work and take bytes / speed on its clock. With a speed of 0 they take no time.
class PacedDevice {
public:
    PacedDevice(uint64_t piece_bytes, double bytes_per_second) : speed_(bytes_per_second) {
        info_.struct_size = sizeof info_;
        info_.staging_piece_bytes = piece_bytes;
        table_.struct_size = sizeof table_;
        table_.name = "paced";
        table_.device_close = [](sh_backend_device*) {};
        table_.last_error = [] { return ""; };
        table_.host_register = [](sh_backend_device*, void*, uint64_t) { return sh_status(SH_OK); };
        table_.host_unregister = [](sh_backend_device*, void*) { return sh_status(SH_OK); };
        table_.event_create = [](sh_backend_device* device, uint32_t, sh_backend_event* event) {
            *event = of(device).events_++;
            return sh_status(SH_OK);
        };
        table_.event_destroy = [](sh_backend_device*, sh_backend_event) { return sh_status(SH_OK); };
        table_.event_record = [](sh_backend_device* device, sh_backend_event event, sh_stream) {
            of(device).done_at_[event] = of(device).busy_until_.load();
            return sh_status(SH_OK);
        };
        table_.event_query = [](sh_backend_device* device, sh_backend_event event, uint32_t* done) {
            *done = now() >= of(device).done_at_[event];
            return sh_status(SH_OK);
        };
        table_.event_synchronize = [](sh_backend_device* device, sh_backend_event event) {
            while (now() < of(device).done_at_[event]) std::this_thread::yield();
            return sh_status(SH_OK);
        };
        table_.copy_to_device = [](sh_backend_device* device, sh_stream, uint64_t, const void*, uint64_t bytes) {
            of(device).copy(bytes);
            return sh_status(SH_OK);
        };
        device_ = std::make_unique<BackendDevice>(table_, reinterpret_cast<sh_backend_device*>(this), info_);
    }
    BackendDevice& device() { return *device_; }

private:
    static PacedDevice& of(sh_backend_device* device) { return *reinterpret_cast<PacedDevice*>(device); }
    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    void copy(uint64_t bytes) {
        if (speed_ == 0) return;
        const double time = now();
        std::lock_guard lock(mutex_);
        busy_until_ = std::max(busy_until_.load(), time) + static_cast<double>(bytes) / speed_;
    }

    const double speed_;
    sh_backend table_ = {};
    sh_backend_device_info info_ = {};
    std::unique_ptr<BackendDevice> device_;
    std::mutex mutex_;
    std::atomic<double> busy_until_ = 0;
    std::atomic<uint64_t> events_ = 1;
    std::atomic<double> done_at_[8192] = {};
};

// Moves a source through the engine, load after load. All loads are queued at once.
class Ring {
public:
    Ring(PacedDevice& device, uint32_t threads) : engine_(device.device(), {.threads = threads}) {}

    double seconds(const Source& source) {
        std::vector<StagedLoad> loads(kBytes / kLoadBytes);
        left_ = loads.size();
        for (size_t i = 0; i < loads.size(); i++) {
            loads[i].extents = {{&source, i * kLoadBytes, (1 + i) * kLoadBytes, kLoadBytes, 0, 0}};
            loads[i].deadline_ns = i;
            loads[i].context = this;
            loads[i].finished = [](void* context, StagedLoad&, const Status& status) {
                static_cast<Ring*>(context)->finish(status);
            };
        }
        return bench::seconds([&] {
            for (StagedLoad& load : loads) require(engine_.submit(load), "submit");
            std::unique_lock lock(mutex_);
            done_.wait(lock, [&] { return left_ == 0; });
        });
    }
    uint64_t bytes() const { return engine_.bytes(); }

private:
    void finish(const Status& status) {
        require(status, "load");
        std::lock_guard lock(mutex_);
        if (--left_ == 0) done_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable done_;
    size_t left_ = 0;
    StagingEngine engine_;
};

// Copies the source piece by piece with `threads` threads. Each piece goes to its place in `to`, or into one of two
// buffers of the thread in turn.
double memcpy_seconds(uint32_t threads, uint64_t piece, const char* from, char* to, bool into_slots) {
    std::atomic<uint64_t> next = 0;
    const auto work = [&](uint32_t thread) {
        for (uint64_t turn = 0, at; (at = next.fetch_add(piece)) < kBytes; turn++)
            std::memcpy(to + (into_slots ? (2 * thread + turn % 2) * piece : at), from + at, piece);
    };
    return bench::seconds([&] {
        std::vector<std::thread> helpers;
        for (uint32_t i = 1; i < threads; i++) helpers.emplace_back(work, i);
        work(0);
        for (std::thread& helper : helpers) helper.join();
    });
}

char* map_memory(int file) {
    void* const memory = mmap(nullptr, kBytes, PROT_READ | (file < 0 ? PROT_WRITE : 0),
                              file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        std::perror("mmap");
        std::exit(1);
    }
    if (file < 0) std::memset(memory, 1, kBytes);
    return static_cast<char*>(memory);
}

int make_file(const char* memory) {
    char path[] = "staging-bench-XXXXXX";
    const int file = mkstemp(path);
    if (file >= 0) unlink(path);
    for (uint64_t at = 0; at < kBytes;) {
        const ssize_t written = file < 0 ? -1 : pwrite(file, memory + at, kBytes - at, static_cast<off_t>(at));
        if (written <= 0) {
            std::perror("cannot write a file in the working directory");
            std::exit(1);
        }
        at += static_cast<uint64_t>(written);
    }
    fsync(file);
    return file;
}

struct Sources {
    char* memory = map_memory(-1);
    char* to = map_memory(-1);
    int file = make_file(memory);
    char* mapped = map_memory(file);
    Source pageable, mapping, cached;

    Sources() {
        sh_segment segment = SH_SEGMENT_INIT;
        segment.bytes = kBytes;
        segment.pointer = memory;
        segment.kind = SH_SOURCE_POINTER;
        require(open_source(segment, &pageable), "pageable");
        segment.pointer = mapped;
        segment.kind = SH_SOURCE_MAPPED;
        require(open_source(segment, &mapping), "mapped");
        segment.kind = SH_SOURCE_FILE;
        segment.file = file;
        require(open_source(segment, &cached), "file");
    }
    ~Sources() {
        close_source(&cached);
        for (char* each : {memory, to, mapped}) munmap(each, kBytes);
        close(file);
    }
};

double gigabytes(double seconds) { return static_cast<double>(kBytes) / seconds / 1e9; }

// Prints one line. Each round measures everything in turn, so that noise affects all alike. Ratios are taken within the
// rounds.
void measure_ring(Sources& sources, uint32_t threads, uint64_t piece) {
    PacedDevice device(piece, 0);
    Ring ring(device, threads);
    const Source* const kinds[] = {&sources.pageable, &sources.cached, &sources.mapping};
    std::vector<double> plain, slots, speed[3], to_plain[3], to_slots[3];
    for (int round = -1; round < kRounds; round++) {
        const double p = memcpy_seconds(threads, piece, sources.memory, sources.to, false);
        const double s = memcpy_seconds(threads, piece, sources.memory, sources.to, true);
        for (int k = 0; k < 3; k++) {
            const double r = ring.seconds(*kinds[k]);
            if (round < 0) continue;  // warm up
            speed[k].push_back(gigabytes(r));
            to_plain[k].push_back(p / r);
            to_slots[k].push_back(s / r);
        }
        if (round < 0) continue;
        plain.push_back(gigabytes(p));
        slots.push_back(gigabytes(s));
    }
    std::printf("%7u %5llu KiB %5llu MiB %7.1f %8.1f", threads, static_cast<unsigned long long>(piece >> 10),
                static_cast<unsigned long long>(ring.bytes() >> 20), bench::median(plain), bench::median(slots));
    for (int k = 0; k < 3; k++)
        std::printf(" | %5.1f  %4.2f  %4.2f", bench::median(speed[k]), bench::median(to_plain[k]),
                    bench::median(to_slots[k]));
    std::printf("\n");
}

// For links that are slower than the reading, prints the used part of the link's time.
void measure_link(Sources& sources, uint32_t threads, uint64_t piece) {
    PacedDevice instant(piece, 0);
    Ring unpaced(instant, threads);
    (void)unpaced.seconds(sources.cached);
    for (const double part : {0.25, 0.5, 0.8}) {
        std::vector<double> used;
        double speed = 0;
        for (int round = 0; round < kRounds; round++) {
            speed = part * gigabytes(unpaced.seconds(sources.cached));
            PacedDevice device(piece, speed * 1e9);
            Ring ring(device, threads);
            (void)ring.seconds(sources.cached);
            used.push_back(gigabytes(ring.seconds(sources.cached)) / speed);
        }
        std::printf("%7u %5llu KiB %7.1f GB/s %6.2f\n", threads, static_cast<unsigned long long>(piece >> 10), speed,
                    bench::median(used));
    }
}

}  // namespace

int main() {
    Sources sources;
    const uint32_t cores = stagehand::platform::usable_cores();
    std::printf(
        "%llu MiB in loads of %llu MiB, %u cores; medians of %d rounds; GB/s, then the ratio to plain memcpy "
        "and to memcpy into "
        "slots\n\n",
        static_cast<unsigned long long>(kBytes >> 20), static_cast<unsigned long long>(kLoadBytes >> 20), cores,
        kRounds);
    std::printf(
        "                              memcpy          | pageable          | page cache        | mapped "
        "file\n");
    std::printf(
        "threads     piece   buffers   plain to slots | GB/s  plain slots | GB/s  plain slots | GB/s  plain "
        "slots\n");
    for (uint32_t threads = 1; threads <= std::min(cores, 8u); threads *= 2)
        for (const uint64_t piece : {uint64_t(256) << 10, uint64_t(1) << 20, uint64_t(4) << 20})
            measure_ring(sources, threads, piece);
    std::printf("\nA paced link, from the page cache: used part of the link's time\n");
    std::printf("threads     piece        link   used\n");
    for (const uint64_t piece : {uint64_t(256) << 10, uint64_t(1) << 20, uint64_t(4) << 20})
        measure_link(sources, std::min(cores, 8u), piece);
}
