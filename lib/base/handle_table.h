// HandleTable: turns objects into handles that can be checked. A handle is an index and a generation, encoded as a
// pointer. It is never dereferenced, so the table detects a stale or invalid handle. Each slot holds the mutex of its
// object, so that one step checks a handle and locks the object.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace stagehand {

// `kTag` is odd and below 16. It tells the handles of one table from the handles of another table.
template <class Object, uint64_t kTag>
class HandleTable {
    static_assert(kTag % 2 == 1 && kTag < 16, "no real pointer looks like it");

public:
    HandleTable() = default;
    ~HandleTable() {
        for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
    }
    HandleTable(const HandleTable&) = delete;
    HandleTable& operator=(const HandleTable&) = delete;

    struct alignas(64) Slot {
        std::mutex mutex;
        uint32_t generation = 1;  // guarded by mutex
        uint32_t index = 0;
        std::shared_ptr<Object> object;  // guarded by mutex; empty if the slot is free
    };

    // Puts an object into a free slot. The handle is valid as soon as this returns.
    void* insert(std::shared_ptr<Object> object) { return publish(take_free_slot(), std::move(object)); }

    // A slot whose mutex an object may refer to before it is published. The slot becomes free again if nothing was
    // published.
    class Reservation {
    public:
        explicit Reservation(HandleTable& table) : table_(table), slot_(&table.take_free_slot()) {}
        ~Reservation() {
            if (slot_) table_.recycle(*slot_);
        }
        Reservation(const Reservation&) = delete;
        Reservation& operator=(const Reservation&) = delete;

        std::mutex& mutex() { return slot_->mutex; }
        void* publish(std::shared_ptr<Object> object) {
            return table_.publish(*std::exchange(slot_, nullptr), std::move(object));
        }

    private:
        HandleTable& table_;
        Slot* slot_;
    };

    // Locks the slot of a handle. Returns null if the handle is NULL, stale or from another table.
    Slot* lock(const void* handle, std::unique_lock<std::mutex>* out_lock) {
        Slot* const slot = lock(handle);
        if (slot) *out_lock = std::unique_lock(slot->mutex, std::adopt_lock);
        return slot;
    }

    // For a caller that unlocks the mutex itself.
    Slot* lock(const void* handle) {
        const uint64_t value = reinterpret_cast<uint64_t>(handle);
        if ((value & kTagMask) != kTag) return nullptr;
        const uint32_t index = static_cast<uint32_t>(value >> kTagBits) & kIndexMask;
        if (index >= count_.load(std::memory_order_acquire)) return nullptr;
        Slot& slot = chunks_[index / kChunkSlots].load(std::memory_order_relaxed)[index % kChunkSlots];
        slot.mutex.lock();
        if (slot.generation != static_cast<uint32_t>(value >> (kTagBits + kIndexBits)) || !slot.object) [[unlikely]] {
            slot.mutex.unlock();
            return nullptr;
        }
        return &slot;
    }

    // Makes the slot's handle stale and returns the object. The caller holds the slot's mutex. After it has unlocked
    // the mutex, it gives the slot back by recycle().
    std::shared_ptr<Object> remove(Slot& slot) {
        slot.generation = (slot.generation + 1) & kGenerationMask;
        return std::move(slot.object);
    }
    void recycle(Slot& slot) noexcept {
        std::lock_guard lock(growth_);
        free_.push_back(&slot);
    }

    // Calls `visit(handle, object)` for each object with its slot locked. Objects that come or go meanwhile may be left
    // out. The function is for observers: it waits for no slot beyond `until`. It passes over slots that are locked
    // then, and returns their number.
    template <class Visit>
    uint32_t for_each(std::chrono::steady_clock::time_point until, Visit&& visit) {
        uint32_t passed_over = 0;
        const uint32_t count = count_.load(std::memory_order_acquire);
        for (uint32_t index = 0; index < count; index++) {
            Slot& slot = chunks_[index / kChunkSlots].load(std::memory_order_relaxed)[index % kChunkSlots];
            if (!lock_until(slot.mutex, until)) {
                passed_over++;
                continue;
            }
            std::unique_lock lock(slot.mutex, std::adopt_lock);
            if (slot.object) visit(encode(index, slot.generation), *slot.object);
        }
        return passed_over;
    }

private:
    Slot& take_free_slot() {
        std::lock_guard lock(growth_);
        if (!free_.empty()) {
            Slot& slot = *free_.back();
            free_.pop_back();
            return slot;
        }
        const uint32_t index = count_.load(std::memory_order_relaxed);
        if (index >= kChunks * kChunkSlots) throw std::bad_alloc();
        if (index % kChunkSlots == 0) {
            free_.reserve(index + kChunkSlots);  // so that recycle() never allocates
            chunks_[index / kChunkSlots].store(new Slot[kChunkSlots], std::memory_order_release);
        }
        Slot& slot = chunks_[index / kChunkSlots].load(std::memory_order_relaxed)[index % kChunkSlots];
        slot.index = index;
        count_.store(index + 1, std::memory_order_release);
        return slot;
    }

    void* publish(Slot& slot, std::shared_ptr<Object> object) {
        std::lock_guard lock(slot.mutex);
        slot.object = std::move(object);
        return encode(slot.index, slot.generation);
    }

    // Tries again and again, because even a mutex that other threads hold most of the time is free now and then.
    static bool lock_until(std::mutex& mutex, std::chrono::steady_clock::time_point until) {
        using namespace std::chrono_literals;
        for (std::chrono::nanoseconds pause = 10us; !mutex.try_lock();
             pause = std::min<std::chrono::nanoseconds>(2 * pause, 1ms)) {
            if (std::chrono::steady_clock::now() + pause >= until) return false;
            std::this_thread::sleep_for(pause);
        }
        return true;
    }

    // 4 bits of tag, 20 of index, 31 of generation.
    static constexpr uint64_t kTagBits = 4, kIndexBits = 20, kTagMask = 0xf;
    static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1, kGenerationMask = 0x7fffffff;
    static constexpr uint32_t kChunkSlots = 256, kChunks = (1u << kIndexBits) / kChunkSlots;

    static void* encode(uint32_t index, uint32_t generation) {
        return reinterpret_cast<void*>((uint64_t(generation) << (kTagBits + kIndexBits)) |
                                       (uint64_t(index) << kTagBits) | kTag);
    }

    std::mutex growth_;
    std::vector<Slot*> free_;
    std::atomic<uint32_t> count_{0};
    std::atomic<Slot*> chunks_[kChunks] = {};
};

}  // namespace stagehand
