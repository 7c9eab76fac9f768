#include "host/stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <system_error>

#include "codec/chunk.h"
#include "codec/tiles_apart.h"
#include "host/clock.h"
#include "support/last_error.h"

namespace stagehand::host {
namespace {

codec::TilesApart apart(const sh_backend_tiles& tiles) {
    return {static_cast<codec::FloatFormat>(tiles.format), tiles.elements, static_cast<uint8_t*>(tiles.host),
            static_cast<uint8_t*>(tiles.headers)};
}

}  // namespace

Stream::Stream(Pacing& pacing, uint64_t number)
    : pacing_(pacing), random_(pacing.jitter_seed * 0x9e3779b97f4a7c15u + (number + 1) * 0xbf58476d1ce4e5b9u) {}

Stream::~Stream() { stop(); }

sh_status Stream::start() {
    // Signals belong to the engine's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sh_status status = SH_OK;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
        status = support::fail(SH_ERROR_OUT_OF_HOST_MEMORY, "cannot start a thread for a stream: %s", error.what());
    } catch (const std::bad_alloc&) {
        status =
            support::fail(SH_ERROR_OUT_OF_HOST_MEMORY, "cannot start a thread for a stream: no host memory is left");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
}

sh_status Stream::enqueue(Command&& command) {
    command.issued_ns = now_ns();
    std::lock_guard lock(mutex_);
    if (stopping_) return support::fail(SH_ERROR_INVALID_HANDLE, "the stream is being destroyed");
    queue_.push(std::move(command));
    ++queued_;
    if (idle_) work_.notify_one();
    return SH_OK;
}

void Stream::synchronize() {
    std::unique_lock lock(mutex_);
    const uint64_t wanted = queued_;
    ++waiters_;
    progress_.wait(lock, [&] { return finished_ >= wanted; });
    --waiters_;
}

void Stream::stop() {
    if (!thread_.joinable()) return;
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
        work_.notify_one();
    }
    thread_.join();
}

void Stream::run() {
    pthread_setname_np(pthread_self(), "sh-host-stream");
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);  // the default lets every sleep end 50 us late
    std::unique_lock lock(mutex_);
    while (true) {
        while (queue_.empty() && !stopping_) {
            idle_ = true;
            work_.wait(lock);
            idle_ = false;
        }
        if (queue_.empty()) return;
        Command command = queue_.pop();
        lock.unlock();
        try {
            carry_out(command);
        } catch (...) {  // a callback must not throw; if it does, waiters of the stream must not wait for ever
        }
        command.record = RecordPointer();
        lock.lock();
        ++finished_;
        if (waiters_) progress_.notify_all();
    }
}

void Stream::carry_out(Command& command) {
    if (pacing_.jitter_ns) delay_at_random();
    switch (command.kind) {
        case Command::Kind::wait:
            command.record->wait();
            model_ns_ = std::max(model_ns_, command.record->model_ns());
            return;
        case Command::Kind::record:
            command.record->complete(std::max(model_ns_, command.issued_ns));
            return;
        case Command::Kind::launch:
            return launch(command);
        case Command::Kind::unpack:
            return unpack(*command.packed, command.issued_ns);
        case Command::Kind::pack_tiles:
            return pack_tiles(*command.tiles, command.issued_ns);
        case Command::Kind::unpack_tiles:
            return unpack_tiles(*command.tiles, command.issued_ns);
        default:
            return copy(command);
    }
}

void Stream::copy(const Command& command) {
    const uint64_t start_ns = std::max(model_ns_, command.issued_ns), began_ns = now_ns();
    const bool over_link = command.kind == Command::Kind::copy_to_device || command.kind == Command::Kind::copy_to_host;
    uint64_t end_ns = 0;
    if (over_link && pacing_.bandwidth) {
        Link& link = command.kind == Command::Kind::copy_to_device ? pacing_.to_device : pacing_.to_host;
        end_ns = link.take(start_ns, pacing_.copy_duration_ns(command.bytes));
    }
    if (command.kind == Command::Kind::fill) {
        std::memset(command.to, command.fill_value, command.bytes);
    } else {
        std::memmove(command.to, command.from, command.bytes);  // two addresses may map the same page
    }
    if (!end_ns) return end_operation(start_ns, pacing_.latency_ns, began_ns);
    model_ns_ = end_ns;
    sleep_until(end_ns);
}

void Stream::unpack(const sh_backend_packed& packed, uint64_t issued_ns) {
    const uint64_t start_ns = std::max(model_ns_, issued_ns), began_ns = now_ns();
    const auto format = static_cast<codec::FloatFormat>(packed.format);
    const auto* const from = reinterpret_cast<const uint8_t*>(packed.from);
    auto* to = reinterpret_cast<uint8_t*>(packed.to);
    bool good = true;
    for (uint32_t i = 0; i < packed.chunks; i++) {
        const uint64_t done = uint64_t(i) * codec::kChunkElements;
        const auto elements = static_cast<uint32_t>(std::min<uint64_t>(packed.elements - done, codec::kChunkElements));
        const std::span<const uint8_t> chunk(from + uint64_t(packed.places[i]) * codec::kTileAlignment,
                                             from + uint64_t(packed.places[i + 1]) * codec::kTileAlignment);
        good = codec::unpack_chunk(format, chunk, elements, to) && good;
        to += uint64_t(elements) * codec::fields_of(format).bytes();
    }
    constexpr uint32_t kFailed = 1;
    if (!good && packed.failed) std::memcpy(reinterpret_cast<void*>(packed.failed), &kFailed, sizeof kFailed);
    end_operation(start_ns, pacing_.latency_ns, began_ns);
}

void Stream::pack_tiles(const sh_backend_tiles& tiles, uint64_t issued_ns) {
    const uint64_t start_ns = std::max(model_ns_, issued_ns), began_ns = now_ns();
    const uint64_t bytes = codec::pack_tiles(apart(tiles), reinterpret_cast<const void*>(tiles.device));
    end_copy(pacing_.to_host, bytes, start_ns, began_ns);
}

void Stream::unpack_tiles(const sh_backend_tiles& tiles, uint64_t issued_ns) {
    const uint64_t start_ns = std::max(model_ns_, issued_ns), began_ns = now_ns();
    const uint64_t bytes = codec::unpack_tiles(apart(tiles), reinterpret_cast<void*>(tiles.device));
    end_copy(pacing_.to_device, bytes, start_ns, began_ns);
}

// A copy whose bytes the CPU has made already. It takes the time of the link, and at least what it took.
void Stream::end_copy(Link& link, uint64_t bytes, uint64_t start_ns, uint64_t began_ns) {
    uint64_t least_ns = pacing_.latency_ns;
    if (pacing_.bandwidth) least_ns = link.take(start_ns, pacing_.copy_duration_ns(bytes)) - start_ns;
    end_operation(start_ns, least_ns, began_ns);
}

void Stream::launch(const Command& command) {
    const uint64_t start_ns = std::max(model_ns_, command.issued_ns), began_ns = now_ns();
    if (command.fn) command.fn(command.user_data);
    if (command.busy_ns >= 0) end_operation(start_ns, static_cast<uint64_t>(command.busy_ns), began_ns);
}

// Real time counts in full. In a paced stream it counts from the start that the model gives.
void Stream::end_operation(uint64_t start_ns, uint64_t least_ns, uint64_t began_ns) {
    const uint64_t ended_ns = now_ns();
    model_ns_ = pacing_.bandwidth ? start_ns + std::max(least_ns, ended_ns - began_ns)
                                  : std::max(start_ns + least_ns, ended_ns);
    sleep_until(model_ns_);
}

void Stream::delay_at_random() {
    random_ += 0x9e3779b97f4a7c15u;
    uint64_t mixed = random_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    sleep_until(now_ns() + mixed % (pacing_.jitter_ns + 1));
}

}  // namespace stagehand::host
