#include "transfer/host/ferry.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "base/no_throw.h"
#include "platform/host_memory.h"
#include "platform/thread.h"

namespace stagehand::transfer {
namespace {

constexpr uint64_t kMostCrews = 8;  // a thread moves some 10 GB/s in memory, and a disk is busy with fewer

}  // namespace

Status Ferry::open() {
    if (is_open()) return Status();
    Status status = no_throw([&] { return make_crews(); });
    ending_ = false;
    for (Crew& crew : crews_) {
        if (!status.ok()) break;
        std::thread thread;
        status = no_throw([&] {
            threads_.reserve(crews_.size());
            return platform::start_thread(
                "sh-ferry", [this, &crew] { work(crew); }, &thread);
        });
        if (status.ok()) threads_.push_back(std::move(thread));
    }
    if (!threads_.empty()) return Status();  // fewer threads do the work too
    close();
    return status;
}

Status Ferry::make_crews() {
    const uint64_t wanted = std::clamp<uint64_t>(platform::usable_cores(), 2, kMostCrews);
    SH_TRY(PinnedMemory::allocate(device_, wanted * kPieceBytes, &memory_));
    if (memory_.pinned() && memory_.piece_bytes() % kPieceBytes)
        return Status(SH_ERROR_INTERNAL, "a buffer of the ferry spans two registrations");
    for (uint64_t i = 0; i < wanted; i++) {
        Crew& crew = crews_.emplace_back();
        crew.buffer = static_cast<char*>(memory_.data()) + i * kPieceBytes;
    }
    return Status();
}

void Ferry::close() noexcept {
    cancel();
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    crews_.clear();
    memory_.reset();
}

Status Ferry::add(const Piece& piece) noexcept {
    return no_throw([&] {
        const std::lock_guard lock(mutex_);
        SH_TRY(status_);
        pieces_.push_back(piece);
        piece.group->under_way++;
        changed_.notify_all();
        return Status();
    });
}

Status Ferry::wait(Group& group) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !group.under_way || !status_.ok(); });
    return status_;
}

void Ferry::cancel() noexcept {
    std::unique_lock lock(mutex_);
    for (const Piece& piece : pieces_) piece.group->under_way--;
    pieces_.clear();
    changed_.wait(lock, [&] { return !carried_; });
    status_ = Status();
}

// A thread that the device refuses asks again with its next piece, so that the refusal passes as other failures do.
void Ferry::work(Crew& crew) {
    bool begun = false;
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return ending_ || (!pieces_.empty() && status_.ok()); });
        if (ending_) return;
        const Piece piece = pieces_.front();
        pieces_.pop_front();
        carried_++;
        lock.unlock();
        Status status = no_throw([&] {
            if (!begun) SH_TRY(device_.thread_begin());
            begun = true;
            return carry(crew, piece);
        });
        lock.lock();
        carried_--;
        piece.group->under_way--;
        if (status_.ok()) status_ = std::move(status);
        changed_.notify_all();
    }
}

Status Ferry::carry(Crew& crew, const Piece& piece) {
    if (piece.leaves) {
        SH_TRY(copy(crew, piece));
        if (piece.file) return crew.files.write(*piece.file, crew.buffer, piece.bytes, piece.offset);
        std::memcpy(piece.memory, crew.buffer, piece.bytes);
        return Status();
    }
    if (piece.file)
        SH_TRY(crew.files.read(*piece.file, crew.buffer, piece.bytes, piece.offset));
    else
        std::memcpy(crew.buffer, piece.memory, piece.bytes);
    return copy(crew, piece);
}

// The copy has ended when the call returns, or nobody can tell: then the caller waits for the lane.
Status Ferry::copy(Crew& crew, const Piece& piece) {
    SH_TRY(piece.leaves ? device_.copy_to_host(piece.lane, crew.buffer, piece.address, piece.bytes)
                        : device_.copy_to_device(piece.lane, piece.address, crew.buffer, piece.bytes));
    const Status ended = device_.stream_synchronize(piece.lane);
    return ended.ok() ? ended : ended.within("a copy through a buffer");
}

}  // namespace stagehand::transfer
