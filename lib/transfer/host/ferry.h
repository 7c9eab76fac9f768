// Ferry: moves contents between device memory and a store that copies of the device cannot reach: host memory that is
// not pinned, and files. Each piece goes through a pinned buffer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/host/file_move.h"
#include "transfer/host/pinned_memory.h"
#include "transfer/host/staging_file.h"
#include "transfer/lane/lane.h"

namespace stagehand::transfer {

// Several threads have a buffer each, so that copies of some overlap with the other half of the way of others. One
// caller at a time.
class Ferry {
public:
    // No piece is larger.
    static constexpr uint64_t kPieceBytes = uint64_t(8) << 20;

    // Pieces that are on their way together.
    struct Group {
        uint64_t under_way = 0;  // guarded by the ferry's mutex
    };
    struct Piece {
        uint64_t address = 0;  // of the device memory
        uint64_t bytes = 0;
        StagingRange* file = nullptr;
        uint64_t offset = 0;     // in the file
        void* memory = nullptr;  // without a file
        sh_stream lane = 0;
        bool leaves = false;  // the device memory is read
        Group* group = nullptr;
    };

    explicit Ferry(BackendDevice& device) : device_(device) {}
    ~Ferry() { close(); }
    Ferry(const Ferry&) = delete;
    Ferry& operator=(const Ferry&) = delete;

    // Makes buffers and begins the threads, if there are none.
    Status open();
    // Frees them. No piece is under way.
    void close() noexcept;
    bool is_open() const { return !threads_.empty(); }
    // The device may use the buffers for ever: they stay when the ferry goes.
    void abandon() { memory_.abandon(); }

    // The group has to live until wait() or cancel() has returned. After a failure no piece is moved before cancel().
    Status add(const Piece& piece) noexcept;
    // Waits until all pieces of the group have arrived. Returns the first failure of any piece.
    Status wait(Group& group);
    // Forgets the pieces that have not begun, waits for the others, and forgets the failure.
    void cancel() noexcept;

private:
    struct Crew {
        char* buffer = nullptr;
        FileMove files;
    };

    Status make_crews();
    void work(Crew& crew);
    Status carry(Crew& crew, const Piece& piece);
    Status copy(Crew& crew, const Piece& piece);

    BackendDevice& device_;
    PinnedMemory memory_;
    std::deque<Crew> crews_;
    std::vector<std::thread> threads_;

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::deque<Piece> pieces_;
    uint64_t carried_ = 0;  // pieces that threads have
    Status status_;
    bool ending_ = false;
};

}  // namespace stagehand::transfer
