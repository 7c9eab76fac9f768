#include "control/control.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "base/no_throw.h"
#include "control/loader.h"
#include "platform/thread.h"

namespace stagehand::control {
namespace {

constexpr TransportLimits kLimits = {.connections = 32,
                                     .header_bytes = 8 << 10,
                                     .body_bytes = 64 << 10,
                                     .patience_ms = 10000,
                                     .same_user_only = 0,
                                     .listening = -1};

// The service whose request the calling thread answers.
thread_local const Service* answering = nullptr;

std::string_view view(const TransportText& text) { return {text.data, text.bytes}; }
Request read(const TransportRequest& request) {
    return {view(request.method), view(request.target), view(request.authorization), view(request.body)};
}

void hand_over(Service& service, const Answer& answer, void* sink, TransportGive give) {
    const TransportAnswer given = {
        answer.status, answer.content_type, answer.allow, {answer.body.data(), answer.body.size()}};
    if (give(sink, &given)) service.count(answer.status);
}

// Needs no memory of its own.
void hand_over_failure(Service& service, const Status& why, void* sink, TransportGive give) {
    constexpr const char* kText = "{\"success\":false,\"changed\":false,\"error\":\"out_of_host_memory\"}\n";
    constexpr const char* kOther = "{\"success\":false,\"changed\":false,\"error\":\"internal\"}\n";
    const char* const text = why.code() == SH_ERROR_OUT_OF_HOST_MEMORY ? kText : kOther;
    const TransportAnswer given = {500, "application/json", nullptr, {text, std::strlen(text)}};
    if (give(sink, &given)) service.count(500);
}

int32_t on_admit(void* user, const TransportRequest* request, void* sink, TransportGive give) {
    Service& service = *static_cast<Service*>(user);
    TransportLane lane = kAnswered;
    const Status status = no_throw([&] {
        Answer answer;
        lane = service.admit(read(*request), &answer);
        if (lane == kAnswered) hand_over(service, answer, sink, give);
        return Status();
    });
    if (!status.ok()) hand_over_failure(service, status, sink, give);
    return lane;
}

void on_request(void* user, const TransportRequest* request, void* sink, TransportGive give) {
    Service& service = *static_cast<Service*>(user);
    answering = &service;
    const Status status = no_throw([&] {
        hand_over(service, service.answer(read(*request)), sink, give);
        return Status();
    });
    answering = nullptr;
    if (!status.ok()) hand_over_failure(service, status, sink, give);
}

}  // namespace

// All controls of the process, for forks and for the end of the process. Never destroyed.
class Controls {
public:
    static Controls& all() {
        static Controls* const instance = [] {
            auto* const made = new Controls;
            pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().in_child(); });
            std::atexit([] { all().at_exit(); });
            return made;
        }();
        return *instance;
    }

    // Opens the socket of a control in a way that no fork comes between.
    Status open(Control& control, const Address& address) {
        std::lock_guard lock(mutex_);
        controls_.reserve(controls_.size() + 1);
        SH_TRY(Listener::open(address, &control.listener_));
        controls_.push_back(&control);
        return Status();
    }
    void remove(Control& control) {
        std::lock_guard lock(mutex_);
        std::erase(controls_, &control);
    }

private:
    // The child has no threads that answer. The files belong to the parent.
    void in_child() {
        for (Control* control : controls_) control->abandon();
        controls_.clear();
        mutex_.unlock();
    }
    // A pause that a request has begun may take long, and does not hold up the end of the process.
    void at_exit() {
        std::lock_guard lock(mutex_);
        for (Control* control : controls_) {
            control->halt();
            control->listener_.reset();
        }
        controls_.clear();
    }

    std::mutex mutex_;
    std::vector<Control*> controls_;
};

Status Control::start(const Address& address, std::unique_ptr<Occupant> occupant, MakeSnapshot* make_snapshot,
                      std::string token, std::shared_ptr<Control>* out) {
    std::shared_ptr<Control> control(new Control(std::move(occupant), make_snapshot, std::move(token)));
    SH_TRY(find_transport(&control->transport_));
    SH_TRY(control->open(address));
    SH_TRY(control->start_threads());
    log_line(SH_LOG_INFO, "the control is listening at %s", control->address_.text().c_str());
    *out = std::move(control);
    return Status();
}

Status Control::open(const Address& address) {
    SH_TRY(Controls::all().open(*this, address));
    address_ = listener_->address();
    TransportHandler handler = {.user = &service_, .admit = on_admit, .answer = on_request, .limits = kLimits};
    handler.limits.same_user_only = !address_.is_tcp();
    handler.limits.listening = listener_->descriptor().number();
    if (const sh_status code = transport_->open(&handler, &server_); code < 0)
        return Status(code, "control " + address_.text() + ": the server could not be made");
    return Status();
}

Status Control::start_threads() {
    working_.reserve(Service::kMostChanges + 2);
    const auto work = [&](const char* name, int32_t lane) {
        return platform::start_thread(
            name, [this, lane] { transport_->work(server_, lane); }, &working_.emplace_back());
    };
    SH_TRY(platform::start_thread(
        "sh-control", [this] { serve(); }, &serving_));
    SH_TRY(work("sh-ctl-read", kReads));
    for (int i = 0; service_.has_device() && i <= Service::kMostChanges; i++) SH_TRY(work("sh-ctl-change", kChanges));
    return Status();
}

void Control::serve() {
    transport_->serve(server_);
    if (listener_->descriptor().is_lost())
        log_line(SH_LOG_WARNING, "the control at %s has ended, because the process has closed its socket",
                 address_.text().c_str());
}

// Ends the connections, and makes the other threads end when they can.
void Control::halt() {
    if (!server_) return;
    service_.stop();
    transport_->stop(server_);
    if (serving_.joinable()) serving_.join();
}

Control::~Control() {
    if (listener_) Controls::all().remove(*this);
    halt();
    for (std::thread& thread : working_)
        if (thread.joinable()) thread.join();
    if (server_) transport_->close(server_);
}

bool Control::is_calling() const { return answering == &service_; }

}  // namespace stagehand::control
