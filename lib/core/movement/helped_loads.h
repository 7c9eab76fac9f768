// HelpedLoads: which units have bytes that helpers have brought, and whether these bytes are right.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "core/device/helpers.h"
#include "core/memory/contents.h"
#include "core/memory/registry.h"

namespace stagehand::core {

// A helper's failure is none of the device's, so the events of loads come all the same. What a helper has brought is
// right if the helper works after that. Loads are numbered from 1 on, in the order in which their copies were queued.
// The caller holds the runtime's mutex in all methods.
class HelpedLoads {
public:
    // What was so when a load began.
    struct Mark {
        uint64_t bytes = 0, losses = 0;
    };

    HelpedLoads(BackendDevice& device, Registry& registry, Contents& contents)
        : device_(device), registry_(registry), contents_(contents) {}
    ~HelpedLoads();
    HelpedLoads(const HelpedLoads&) = delete;
    HelpedLoads& operator=(const HelpedLoads&) = delete;

    Status open(Helpers* helpers);

    // For a load of the unit that begins. Without helpers, this and all below does nothing.
    Mark mark(const Unit& unit);
    // All copies of the unit's load are queued, or none any more. `whole`: the load has not failed, so that its bytes
    // may be used.
    void queued(Unit& unit, const Mark& begin, bool whole);
    // Finds out whether helpers have failed. Units whose bytes may be wrong then are loaded again when they are needed.
    // Never waits. `lane`: the stream of the loads that the own link brings.
    void look(sh_stream lane);
    // The next look() comes after all copies that were queued until now.
    void expect_all(sh_stream lane);
    // How often bytes were lost so far.
    uint64_t losses() const { return losses_; }
    // The loss of bytes that may have been used, once.
    Status take_failure();

private:
    void note_losses();
    void lose(Unit& unit);

    BackendDevice& device_;
    Registry& registry_;
    Contents& contents_;
    Helpers* helpers_ = nullptr;
    uint64_t last_ = 0, right_ = 0;  // the bytes of loads until `right_` are right, or are loaded again
    std::vector<uint64_t> last_of_;  // for each unit, its last load in which helpers had a part
    size_t distrusted_ = 0;          // helpers, when losses were noted last
    uint64_t losses_ = 0;
    bool told_ = true;             // see take_failure()
    sh_backend_event passed_ = 0;  // after the copies of the loads until `passing_`
    uint64_t passing_ = 0;         // 0: nothing is marked
};

}  // namespace stagehand::core
