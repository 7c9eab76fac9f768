// HelpedCarrier: an adaptor that divides copies among the device's own link and relays beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend_device.h"
#include "base/status.h"
#include "transfer/carrier/carrier.h"
#include "transfer/carrier/deal.h"
#include "transfer/carrier/relay.h"
#include "transfer/carrier/running_speed.h"
#include "transfer/carrier/trip_log.h"

namespace stagehand::transfer {

// Without relays, the own link brings everything. A helper's failure is none of the device's, so the event of a trip
// comes all the same: see TripLog. Relays are added before the first trip.
class HelpedCarrier : public Carrier {
public:
    HelpedCarrier(BackendDevice& device, std::unique_ptr<Carrier> own)
        : device_(device), own_(std::move(own)), own_speed_(device, kCopiesBetween) {}
    ~HelpedCarrier() override { remove_relays(); }

    Status open(Lanes& lanes) override { return own_->open(lanes); }
    sh_stream stream() const override { return own_->stream(); }
    // Relays whose helpers have nothing else to do take part.
    Status begin(bool after_all, sh_backend_event written, Trip* out) override;
    Status carry(Trip trip, sh_stream* stream, const Cargo& cargo) override;
    Status join() override;
    Status finish(sh_backend_event done) override;
    Trip end(Trip trip) override;
    Answer ask(Trip trip) const override;
    Status synchronize() override;
    void look() override;
    uint64_t times_wrong() const override { return times_wrong_.load(std::memory_order_relaxed); }
    size_t ways() const override { return 1 + ways_.size(); }
    uint64_t bytes_beside() const override { return relayed_; }

    // Waits on the host for what relays have brought until now.
    Status settle();

    // --- Relays

    // `name`: of the relay, in the log. `is_idle`: whether the helper has nothing else to do. `*out`: its number.
    Status add(Lanes& lanes, std::unique_ptr<Relay> relay, std::string name, std::function<bool()> is_idle,
               size_t* out);
    // All of them are closed.
    void remove_relays() noexcept;
    Relay& relay(size_t way) { return *ways_[way].relay; }  // for tests
    // Opens and closes it, while no trip is under way.
    Status open_relay(size_t way, Lanes& lanes, Lanes& helper_lanes, uint64_t address, uint64_t bytes);
    Status close_relay(size_t way, bool* out_over);
    struct State {
        bool open = false, failed = false;
        double bytes_per_ns = 0;  // as its link shows
    };
    State state(size_t way) const;
    // It is not used any more.
    void fail(size_t way);
    void set_speed(size_t way, double bytes_per_ns, uint64_t lone_copy_ns);
    // The speed of the device's own link, in bytes per nanosecond, until its copies show it. See Relay::set_speed().
    void set_own_speed(double bytes_per_ns, uint64_t lone_copy_ns);

private:
    static constexpr uint64_t kCopiesBetween = 16;  // from one sample of the own link's speed to the next

    struct Way {
        std::unique_ptr<Relay> relay;
        std::string name;
        std::function<bool()> is_idle;
        bool wanted = true, failed = false, distrusted = false;

        bool usable() const { return wanted && !failed && relay->is_open(); }
    };
    // A trip under way. Keeps its capacity, so that a steady state allocates nothing.
    struct Journey {
        struct Way {
            WaitSet waited;             // the events that its relay waits for
            bool copies_after = false;  // the helper copies after `written`
        };
        Trip trip = 0;
        bool prepared = false;
        std::vector<Way> ways;
        sh_backend_event written = 0;  // see begin()
        uint64_t relayed = 0;          // `relayed_` when it began
    };

    struct Part {
        size_t way = 0;
        Command command;
    };

    Journey* find(Trip trip);
    Journey& prepare(Trip trip, size_t events);
    Status carry_own(sh_stream stream, std::span<const Command> commands, Cargo cargo);
    Status carry_divided(Trip trip, sh_stream stream, Cargo cargo);
    Status carry_whole(Trip trip, sh_stream* stream, const Cargo& cargo);
    // Whether the command is a copy from host memory. Others are left to the device.
    static bool carries(const Command& command) { return command.kind == Command::Kind::to_device; }
    bool divide(std::span<const Command> commands);
    void divide(Command& command);
    void even_out();
    size_t choose(std::span<const Command> commands, uint64_t bytes) const;
    Status bring(size_t way, const Command& command, const Cargo& cargo, Journey& journey, bool* out_brought);
    Status join_all(Relay::Follower follower, sh_stream stream);
    Status follow_all();
    Status record_end(sh_backend_event done);
    void mark();
    void leave_out(Way& way, const Status& why);
    void ask_helpers();
    void note_failures();

    BackendDevice& device_;
    const std::unique_ptr<Carrier> own_;
    mutable std::mutex mutex_;
    Lane joint_;  // on which trips with relays end
    std::vector<Way> ways_;
    std::vector<Journey> journeys_;
    Journey loose_;  // of copies without a trip
    RunningSpeed own_speed_;
    std::vector<double> given_ns_;  // link time of the whole pieces that the own link was given, and then the ways
    sh_backend_event begun_ = 0;    // see follow_all()
    sh_backend_event tail_ = 0;     // of the own stream, for finish()
    // Of the call under way. They keep their capacity, so that a steady state allocates nothing.
    std::vector<DealtLink> links_;  // the own one, then the relays
    std::vector<Command> own_part_;
    std::vector<Part> parts_;
    std::vector<Command> left_;  // what the relays could not bring
    TripLog log_;
    sh_backend_event passed_ = 0;        // see TripLog::marked()
    size_t distrusted_ = 0;              // ways, when note_failures() looked last
    std::atomic<uint64_t> relayed_ = 0;  // bytes
    std::atomic<uint64_t> times_wrong_ = 0;
};

}  // namespace stagehand::transfer
