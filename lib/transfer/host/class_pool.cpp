#include "transfer/host/class_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/size_text.h"
#include "platform/thread.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kAlignment = 256;                   // of a buffer: copies that begin there are fast on every device
constexpr uint64_t kSteps = 16;                        // classes between two powers of two
constexpr uint64_t kChunkBytes = uint64_t(256) << 20;  // pinned at once, unless one buffer is larger

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

ClassPool::ClassPool(BackendDevice& device, const ClassPoolOptions& options)
    : device_(device),
      fixed_classes_(!options.classes.empty()),
      limit_bytes_(options.limit_bytes),
      to_prepare_(options.classes.begin(), options.classes.end()) {}

ClassPool::~ClassPool() {
    wait_for_growth();
    uint64_t freed = 0;
    (void)trim([](const PoolBuffer&) { return Status(); }, &freed).ok();
}

Status ClassPool::prepare() {
    for (const SizeClass& wanted : to_prepare_) {
        const uint64_t bytes = round_up(wanted.bytes, kAlignment);
        {
            std::lock_guard lock(mutex_);
            classes_[bytes];
        }
        SH_TRY(add_buffers(bytes, wanted.count));
    }
    return Status();
}

// A sixteenth of waste at most, so that the pool takes little more memory than the bytes in it.
uint64_t ClassPool::class_bytes(uint64_t bytes) const {
    if (fixed_classes_) {
        const auto fitting = classes_.lower_bound(bytes);
        return fitting == classes_.end() ? 0 : fitting->first;
    }
    return round_up(bytes, std::max(std::bit_floor(bytes) / kSteps, kAlignment));
}

Status ClassPool::take(uint64_t bytes, std::unique_ptr<PoolBuffer>* out) {
    std::lock_guard lock(mutex_);
    const uint64_t asked = class_bytes(bytes);  // 0: larger than every class
    std::unique_ptr<PoolBuffer> buffer;
    Classes::iterator home = classes_.end();
    if (asked) {
        home = classes_.try_emplace(asked).first;
        buffer = take_free(home);
    }
    const bool hit = buffer != nullptr;
    if (!hit) SH_TRY(take_unpinned(bytes, &buffer));
    (hit ? figures_.hits : figures_.misses)++;
    buffer->asked_class = asked;
    if (asked) home->second.wanted_peak = std::max(home->second.wanted_peak, ++home->second.wanted);
    *out = std::move(buffer);
    return Status();
}

std::unique_ptr<PoolBuffer> ClassPool::take_free(Classes::iterator from) {
    for (; from != classes_.end(); ++from) {
        auto& free = from->second.free;
        if (free.empty()) continue;
        std::unique_ptr<PoolBuffer> buffer = std::move(free.back());
        free.pop_back();
        return buffer;
    }
    return nullptr;
}

Status ClassPool::take_unpinned(uint64_t bytes, std::unique_ptr<PoolBuffer>* out) {
    auto buffer = std::make_unique<PoolBuffer>();
    buffer->data = std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
    if (!buffer->data)
        return Status(SH_ERROR_OUT_OF_HOST_MEMORY, "no host memory for " + size_text(bytes) + " of a spilled tensor");
    buffer->bytes = bytes;
    figures_.unpinned_bytes += bytes;
    *out = std::move(buffer);
    return Status();
}

void ClassPool::give(std::unique_ptr<PoolBuffer> buffer) noexcept {
    if (!buffer) return;
    std::lock_guard lock(mutex_);
    if (buffer->asked_class) classes_.find(buffer->asked_class)->second.wanted--;
    if (buffer->pinned) {
        classes_.find(buffer->bytes)->second.free.push_back(std::move(buffer));  // there is room: see add_chunk()
        return;
    }
    figures_.unpinned_bytes -= buffer->bytes;
    std::free(buffer->data);
}

void ClassPool::grow() {
    std::lock_guard lock(mutex_);
    if (growing_ || full_) return;
    std::vector<SizeClass> missing_buffers = missing();
    if (missing_buffers.empty()) return;
    if (grower_.joinable()) grower_.join();  // it has ended
    growing_ = true;
    const Status started = platform::start_thread(
        "sh-pool",
        [this, wanted = std::move(missing_buffers)] {
            const Status grown = no_throw([&] {
                SH_TRY(device_.thread_begin());
                for (const SizeClass& size_class : wanted) SH_TRY(add_buffers(size_class.bytes, size_class.count));
                return Status();
            });
            if (!grown.ok()) log_line(SH_LOG_WARNING, "the pool for spilled tensors cannot grow: %s", grown.text());
            std::lock_guard ending(mutex_);
            growing_ = false;
        },
        &grower_);
    if (started.ok()) return;
    growing_ = false;
    log_line(SH_LOG_WARNING, "the pool for spilled tensors cannot grow: %s", started.text());
}

std::vector<SizeClass> ClassPool::missing() {
    std::vector<SizeClass> result;
    for (auto& [bytes, size_class] : classes_) {
        if (size_class.wanted_peak > size_class.buffers)
            result.push_back({bytes, size_class.wanted_peak - size_class.buffers});
        size_class.wanted_peak = size_class.wanted;
    }
    return result;
}

void ClassPool::wait_for_growth() {
    std::thread ended;
    {
        std::lock_guard lock(mutex_);
        ended.swap(grower_);
    }
    if (ended.joinable()) ended.join();
}

uint64_t ClassPool::room() const {
    std::lock_guard lock(mutex_);
    return full_ || limit_bytes_ < figures_.pinned_bytes ? 0 : limit_bytes_ - figures_.pinned_bytes;
}

// Adds as many buffers as there is room for.
Status ClassPool::add_buffers(uint64_t bytes, uint64_t count) {
    while (count) {
        const uint64_t at_once = std::min({count, std::max<uint64_t>(kChunkBytes / bytes, 1), room() / bytes});
        if (!at_once) return Status();
        SH_TRY(add_chunk(bytes, at_once));
        count -= at_once;
    }
    return Status();
}

Status ClassPool::add_chunk(uint64_t bytes, uint64_t count) {
    PinnedMemory memory;
    SH_TRY(PinnedMemory::allocate(device_, bytes * count, &memory));
    // A copy must not cross the border of two registrations, and a buffer that is not pinned is of no use here.
    if (!memory.pinned() || (memory.piece_bytes() && memory.piece_bytes() < memory.bytes())) {
        std::lock_guard lock(mutex_);
        full_ = true;
        return Status();
    }
    std::vector<std::unique_ptr<PoolBuffer>> made(count);
    for (uint64_t i = 0; i < count; i++) {
        made[i] = std::make_unique<PoolBuffer>();
        made[i]->data = static_cast<char*>(memory.data()) + i * bytes;
        made[i]->bytes = bytes;
        made[i]->pinned = true;
    }
    std::lock_guard lock(mutex_);
    Class& size_class = classes_[bytes];
    size_class.free.reserve(size_class.buffers + count);
    size_class.chunks.reserve(size_class.chunks.size() + 1);
    figures_.pinned_bytes += memory.bytes();
    size_class.chunks.push_back(std::move(memory));
    size_class.buffers += count;
    for (auto& buffer : made) size_class.free.push_back(std::move(buffer));
    return Status();
}

Status ClassPool::trim(const Settle& settle, uint64_t* freed_bytes) {
    std::lock_guard lock(mutex_);
    *freed_bytes = 0;
    Status status;
    for (auto& [bytes, size_class] : classes_) {
        Status trimmed = trim_class(bytes, size_class, settle, freed_bytes);
        if (status.ok()) status = std::move(trimmed);
    }
    figures_.pinned_bytes -= *freed_bytes;
    full_ = false;
    return status;
}

Status ClassPool::trim_class(uint64_t bytes, Class& size_class, const Settle& settle, uint64_t* freed_bytes) {
    Status status;
    std::erase_if(size_class.chunks, [&](PinnedMemory& chunk) {
        const auto inside = [&](const std::unique_ptr<PoolBuffer>& buffer) {
            const auto offset = static_cast<const char*>(buffer->data) - static_cast<const char*>(chunk.data());
            return offset >= 0 && static_cast<uint64_t>(offset) < chunk.bytes();
        };
        const uint64_t buffers = chunk.bytes() / bytes;
        if (static_cast<uint64_t>(std::count_if(size_class.free.begin(), size_class.free.end(), inside)) != buffers)
            return false;
        for (const auto& buffer : size_class.free) {
            if (!inside(buffer)) continue;
            Status settled = settle(*buffer);
            if (settled.ok()) continue;
            status = std::move(settled);
            return false;
        }
        std::erase_if(size_class.free, inside);
        size_class.buffers -= buffers;
        const uint64_t chunk_bytes = chunk.bytes();
        if (chunk.reset()) *freed_bytes += chunk_bytes;
        return true;
    });
    return status;
}

void ClassPool::abandon() noexcept {
    wait_for_growth();
    std::lock_guard lock(mutex_);
    for (auto& [bytes, size_class] : classes_) {
        for (PinnedMemory& chunk : size_class.chunks) chunk.abandon();
        size_class.chunks.clear();
        size_class.free.clear();
    }
}

ClassPoolFigures ClassPool::figures() const {
    std::lock_guard lock(mutex_);
    return figures_;
}

}  // namespace stagehand::transfer
