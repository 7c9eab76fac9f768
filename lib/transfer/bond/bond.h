// Bond: the link of a device and the relays of its helpers, which together bring bytes to the device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/bond/deal.h"
#include "transfer/bond/relay.h"
#include "transfer/bond/running_speed.h"
#include "transfer/route/issue.h"

namespace stagehand::transfer {

// What a bond has done for one load, or for one sequence of copies.
struct BondedLoad {
    struct Way {
        WaitSet waited;             // the events that its relay waits for
        bool copies_after = false;  // the helper copies after `written`
    };
    std::vector<Way> ways;         // the own link, then the relays
    sh_backend_event written = 0;  // the sources are whole after this event, which is among those of the commands

    void clear() {
        ways.clear();
        written = 0;
    }
};

// The copies of different loads run side by side. A load that must come after all loads before says so. Thread-safe.
// Only one thread at a time issues the copies of a load.
class Bond {
public:
    // A copy of fewer bytes is left to the device's own link.
    static uint64_t least_bytes();
    // For tests with small blocks. In force for all bonds.
    static void set_least_bytes(uint64_t bytes);

    explicit Bond(BackendDevice& device) : device_(device), own_speed_(device, kCopiesBetween) {}
    ~Bond();
    Bond(const Bond&) = delete;
    Bond& operator=(const Bond&) = delete;

    // Lends the stream on which loads end. May be repeated.
    Status open(Lanes& lanes);
    // Adds a way by its name in the log. Returns its number.
    size_t add(std::unique_ptr<Relay> relay, std::string name);
    Relay& relay(size_t way) { return *ways_[way].relay; }  // for tests
    // Opens and closes its relay, while no load is under way.
    Status open_way(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    Status close_way(size_t way, bool* out_over);
    bool is_open(size_t way) const;
    void set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns);
    // The way is not used any more.
    void fail(size_t way);
    // Whether the way is used for now. A way that has failed is not used any more, whatever is said here.
    void use(size_t way, bool use);
    bool has_failed(size_t way) const;
    bool is_distrusted(size_t way) const;  // see distrusted()
    // The number of ways that have failed so that what they copied since the last check() may be wrong.
    size_t distrusted() const;
    uint64_t bytes(size_t way) const;  // that it has brought
    double speed(size_t way) const;    // that its link shows, in bytes per nanosecond
    size_t ways() const;               // beside the own link
    // The speed of the device's own link, in bytes per nanosecond, until its copies show it. See Relay::set_speed().
    void set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns);
    double own_speed() const;  // 0: not known

    // The copies that are issued from now on are written after all that were issued before. `lane`, here and below, is
    // the stream of the loads that the own link brings, always the same.
    Status follow_all(sh_stream lane);
    // transfer::issue() over all ways.
    Status issue(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                 BondedLoad* load, WaitSet* waited, Issued* out, CopyMeter* meter = nullptr);
    // One way brings everything. `out_stream` gets the stream of the device on which the last copy is
    // queued, also after a failure.
    Status issue_whole(sh_stream lane, std::span<const Command> commands, std::span<const sh_backend_event> events,
                       BondedLoad* load, WaitSet* waited, Issued* out, sh_stream* out_stream);
    // Makes the lane wait for what the relays bring.
    Status join(sh_stream lane);
    // Records the event after all copies that were issued so far, on whichever way. The lane does not wait for relays.
    Status finish(sh_stream lane, sh_backend_event done);
    // Waits on the host for all copies that were issued, and for the events of finish().
    Status synchronize(sh_stream lane);
    // Waits on the host for what relays have brought until now.
    Status settle();
    // To be asked after the copies have ended. Fails if a helper, whose copies are no part of the device's work, has
    // failed since it was asked. That helper is not used any more, as one that fails while it has nothing to do.
    Status check();
    Status end_reads();  // see Relay::end_reads()

private:
    static constexpr uint64_t kCopiesBetween = 16;  // from one sample of the own link's speed to the next

    struct Way {
        std::unique_ptr<Relay> relay;
        std::string name;
        bool wanted = false, failed = false, distrusted = false;
        uint64_t bytes = 0;

        bool usable() const { return wanted && !failed && relay->is_open(); }
    };
    struct Part {
        size_t way = 0;
        Command command;
    };

    void prepare(BondedLoad* load, size_t events) const;
    // Whether the command is a copy from host memory. Others are left to the device.
    static bool carries(const Command& command) { return command.kind == Command::Kind::to_device; }
    bool divide(std::span<const Command> commands);
    void divide(const Command& command);
    void even_out();
    size_t choose(std::span<const Command> commands, uint64_t bytes) const;
    Status bring(size_t way, const Command& command, std::span<const sh_backend_event> events, BondedLoad* load,
                 Issued* out, bool* out_brought);
    Status join_all(Relay::Follower follower, sh_stream stream);
    void leave_out(Way& way, const Status& why);

    BackendDevice& device_;
    mutable std::mutex mutex_;
    Lane joint_;  // loads end here
    std::vector<Way> ways_;
    RunningSpeed own_speed_;
    std::vector<double> given_ns_;  // link time of the whole pieces that the own link was given, and then the ways
    sh_backend_event begun_ = 0;    // see follow_all()
    sh_backend_event tail_ = 0;     // of the lane, for finish()
    std::vector<DealtLink> links_;  // the own one, then the ways
    std::vector<Command> own_;      // of the call under way: what the own link brings
    std::vector<Part> parts_;       // and what relays bring
    std::vector<Command> left_;     // and what they could not bring
    bool is_cut_ = false;           // the last command was divided
};

}  // namespace stagehand::transfer
