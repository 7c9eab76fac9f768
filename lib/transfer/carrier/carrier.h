// Carrier: brings the bytes of a runtime's loads to the device, over the device's own link and over relays beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/division.h"
#include "transfer/carrier/relay.h"
#include "transfer/carrier/running_speed.h"
#include "transfer/carrier/trip_log.h"
#include "transfer/route/issue.h"

namespace stagehand::transfer {

// The copies of one load, or of one sequence of copies, while they are queued.
struct Trip {
    struct Way {
        WaitSet waited;             // the events that its relay waits for
        bool copies_after = false;  // the helper copies after `written`
    };
    std::vector<Way> ways;            // of the relays
    sh_backend_event written = 0;     // the sources are whole after this event, which is among those of the commands
    uint64_t relayed = 0, wrong = 0;  // what was so when it began, see Carrier::begin()

    void clear() {
        ways.clear();
        written = 0;
        relayed = wrong = 0;
    }
};

// Without relays, the own link brings everything, and a trip is right when its event has come. A helper's failure is
// none of the device's, so the event comes all the same: see TripLog.
//
// The copies of different loads run side by side. A load that must come after all loads before says so. Thread-safe.
// Relays are added before the first trip, and one thread at a time issues the copies of a trip.
class Carrier {
public:
    // A copy of fewer bytes is left to the device's own link.
    static uint64_t least_bytes();
    // For tests with small blocks. In force for all.
    static void set_least_bytes(uint64_t bytes);

    explicit Carrier(BackendDevice& device) : device_(device), own_speed_(device, kCopiesBetween) {}
    ~Carrier() { remove_relays(); }
    Carrier(const Carrier&) = delete;
    Carrier& operator=(const Carrier&) = delete;

    Status open(Lanes& lanes) { return lanes.lend(Direction::to_device, &lane_); }
    sh_stream stream() const { return lane_.stream(); }  // of the copies that the own link brings

    // --- Relays

    // `name`: of the relay, in the log. `is_idle`: whether the helper has nothing else to do. `*out`: its number.
    Status add(Lanes& lanes, std::unique_ptr<Relay> relay, std::string name, std::function<bool()> is_idle,
               size_t* out);
    // All of them are closed.
    void remove_relays() noexcept;
    size_t relays() const { return ways_.size(); }
    Relay& relay(size_t way) { return *ways_[way].relay; }  // for tests
    // Opens and closes it, while no trip is under way.
    Status open_relay(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    Status close_relay(size_t way, bool* out_over);
    bool is_open(size_t way) const;
    // It is not used any more.
    void fail(size_t way);
    bool has_failed(size_t way) const;
    void set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns);
    double speed(size_t way) const;  // that its link shows, in bytes per nanosecond
    uint64_t relayed_bytes() const;  // that all relays have brought
    // The speed of the device's own link, in bytes per nanosecond, until its copies show it. See Relay::set_speed().
    void set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns);

    // --- Trips

    // A piece of fewer bytes is not relayed. 0: nothing is.
    uint64_t least_piece() const { return ways_.empty() ? 0 : least_bytes(); }
    // A trip begins. Relays whose helpers have nothing else to do take part. `after_all`: its copies are written after
    // all that were issued before.
    Status begin(bool after_all, Trip* out);
    // transfer::issue() over all ways. `stream`, here and below: of the copies that the own link brings.
    Status issue(sh_stream stream, std::span<const Command> commands, std::span<const sh_backend_event> events,
                 Trip* trip, WaitSet* waited, Issued* out, CopyMeter* meter = nullptr);
    // One way brings everything. `out_stream` gets the stream of the device on which the last copy is
    // queued, also after a failure.
    Status issue_whole(sh_stream stream, std::span<const Command> commands, std::span<const sh_backend_event> events,
                       Trip* trip, WaitSet* waited, Issued* out, sh_stream* out_stream);
    // Makes the own stream wait for what the relays bring.
    Status join();
    // Records the event after all copies that were issued so far, on whichever way. The own stream does not wait.
    Status finish(sh_backend_event done);
    // Waits on the host for all copies that were issued, and for the events of finish().
    Status synchronize();
    // Waits on the host for what relays have brought until now.
    Status settle();

    // --- Whether the bytes are right

    struct Ended {
        uint64_t number = 0;  // 0: nothing of it was relayed, and nothing went wrong meanwhile
        bool wrong = false;
    };
    // All copies of the trip are queued, or none any more.
    Ended end(const Trip& trip);
    // Finds out whether helpers have failed. Never waits.
    void look();
    // The next look() comes after all copies that were queued until now.
    void expect_all();
    // The trips that were found not to be right since the last call.
    TripLog::Range take_wrong();
    uint64_t times_wrong() const;  // how often such trips were found
    // See Relay::end_reads().
    Status end_reads();

private:
    static constexpr uint64_t kCopiesBetween = 16;  // from one sample of the own link's speed to the next

    struct Way {
        std::unique_ptr<Relay> relay;
        std::string name;
        std::function<bool()> is_idle;
        bool wanted = true, failed = false, distrusted = false;
        uint64_t bytes = 0;

        bool usable() const { return wanted && !failed && relay->is_open(); }
    };
    void prepare(Trip* trip, size_t events) const;
    // Whether the command is a copy from host memory. Others are left to the device.
    static bool carries(const Command& command) { return command.kind == Command::Kind::to_device; }
    bool divide(std::span<const Command> commands);
    void even_out();
    size_t choose(std::span<const Command> commands, uint64_t bytes) const;
    Status bring(size_t way, const Command& command, std::span<const sh_backend_event> events, Trip* trip, Issued* out,
                 bool* out_brought);
    Status join_all(Relay::Follower follower, sh_stream stream);
    Status follow_all();
    Status record_end(sh_backend_event done);
    void leave_out(Way& way, const Status& why);
    uint64_t all_relayed() const;
    void ask_helpers();
    void note_failures();

    BackendDevice& device_;
    mutable std::mutex mutex_;
    Lane lane_, joint_;  // of the own link; trips with relays end on the latter
    std::vector<Way> ways_;
    RunningSpeed own_speed_;
    std::vector<double> given_ns_;  // link time of the whole pieces that the own link was given, and then the ways
    sh_backend_event begun_ = 0;    // see follow_all()
    sh_backend_event tail_ = 0;     // of the own stream, for finish()
    Division division_;             // of the call under way
    std::vector<Command> left_;     // and what the relays could not bring
    TripLog log_;
    sh_backend_event passed_ = 0;  // see TripLog::marked()
    size_t distrusted_ = 0;        // ways, when note_failures() looked last
};

}  // namespace stagehand::transfer
