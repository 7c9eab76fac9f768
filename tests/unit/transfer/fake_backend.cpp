#include "fake_backend.h"

#include <chrono>
#include <random>
#include <stdexcept>

#include "backend/functions.h"
#include "host/host_backend.h"

namespace stagehand::transfer::test {
namespace {

const sh_backend& host = *host::host_backend();
thread_local std::string refusal;  // of this thread's last call, empty if the host backend has answered it

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

sh_status refuse(const std::string& why) {
    refusal = why;
    return SH_ERROR_BACKEND;
}

}  // namespace

// A name as a template argument.
#define SH_NAME(member) constexpr char member##_name[] = #member;
SH_BACKEND_DEVICE_FUNCTIONS(SH_NAME)
#undef SH_NAME

// The table's functions: those of the host backend, but what the test counts, refuses or holds up.
struct FakeTable {
    using Device = sh_backend_device;

    static bool is_refused(Device* device, const char* name) {
        refusal.clear();
        if (!FakeBackend::of(device).refuses(name)) return false;
        refuse(std::string("injected into ") + name);
        return true;
    }
    template <auto function, const char* name>
    struct Pass;
    template <class... Arguments, sh_status (*sh_backend::*function)(Device*, Arguments...), const char* name>
    struct Pass<function, name> {
        static sh_status call(Device* device, Arguments... arguments) {
            if (is_refused(device, name)) return SH_ERROR_BACKEND;
            FakeBackend& fake = FakeBackend::of(device);
            const sh_status status = (host.*function)(fake.inner_, arguments...);
            if (status == SH_OK) fake.note_success(name);
            return status;
        }
    };
#define SH_PASS(member) Pass<&sh_backend::member, member##_name>::call

    // What is queued on the stream from now on waits for the gate, and sleeps.
    static void hold_up(Device* device, sh_stream stream) {
        FakeBackend& fake = FakeBackend::of(device);
        if (fake.gate_open_ && !fake.delay_us) return;
        host.stream_launch(
            fake.inner_, stream, [](void* it) { static_cast<FakeBackend*>(it)->wait_for_gate(); }, &fake, 0);
    }
    static sh_status count_copy(Device* device, sh_stream stream, sh_status status) {
        FakeBackend& fake = FakeBackend::of(device);
        if (status != SH_OK) return status;
        return host.stream_launch(
            fake.inner_, stream, [](void* it) { static_cast<FakeBackend*>(it)->note_copy(); }, &fake, 0);
    }

    static void device_close(Device*) {}
    static const char* last_error() { return refusal.empty() ? host.last_error() : refusal.c_str(); }

    static sh_status host_register(Device* device, void* memory, uint64_t bytes) {
        FakeBackend& fake = FakeBackend::of(device);
        if (is_refused(device, "host_register")) return SH_ERROR_BACKEND;
        if (fake.may_register && !fake.may_register(bytes)) return refuse("refused to pin");
        const uint64_t begin = address_of(memory);
        std::lock_guard lock(fake.mutex_);
        for (const auto& [at, size] : fake.registered_)
            if (at < begin + bytes && begin < at + size) return refuse("already registered");
        fake.registered_[begin] = bytes;
        return SH_OK;
    }
    static sh_status host_unregister(Device* device, void* memory) {
        FakeBackend& fake = FakeBackend::of(device);
        if (is_refused(device, "host_unregister")) return SH_ERROR_BACKEND;
        std::lock_guard lock(fake.mutex_);
        return fake.registered_.erase(address_of(memory)) ? SH_OK : refuse("was not registered");
    }
    static sh_status host_is_pinned(Device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
        FakeBackend& fake = FakeBackend::of(device);
        if (is_refused(device, "host_is_pinned")) return SH_ERROR_BACKEND;
        std::lock_guard lock(fake.mutex_);
        auto range = fake.registered_.upper_bound(address_of(memory));
        *out_pinned =
            range != fake.registered_.begin() && (--range, address_of(memory) + bytes <= range->first + range->second);
        return SH_OK;
    }

    static sh_status stream_launch(Device* device, sh_stream stream, void (*fn)(void*), void* user_data, int64_t busy) {
        hold_up(device, stream);
        return SH_PASS(stream_launch)(device, stream, fn, user_data, busy);
    }
    static sh_status event_record(Device* device, sh_backend_event event, sh_stream stream) {
        hold_up(device, stream);
        return SH_PASS(event_record)(device, event, stream);
    }
    static sh_status copy_to_device(Device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
        hold_up(device, stream);
        return count_copy(device, stream, SH_PASS(copy_to_device)(device, stream, to, from, bytes));
    }
    static sh_status copy_to_host(Device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
        hold_up(device, stream);
        return count_copy(device, stream, SH_PASS(copy_to_host)(device, stream, to, from, bytes));
    }
    static sh_status stream_is_capturing(Device* device, sh_stream stream, uint32_t* capturing) {
        if (is_refused(device, "stream_is_capturing")) return SH_ERROR_BACKEND;
        *capturing = stream == FakeBackend::of(device).capturing;
        return SH_OK;
    }
    static sh_status thread_begin(Device* device) {
        return is_refused(device, "thread_begin") ? SH_ERROR_BACKEND : SH_OK;
    }

    static const sh_backend& table() {
        static const sh_backend all = [] {
            sh_backend t = host;
#define SH_SET(member) t.member = SH_PASS(member);
            SH_BACKEND_DEVICE_FUNCTIONS(SH_SET)
#undef SH_SET
            t.name = "fake";
            t.device_close = device_close;
            t.last_error = last_error;
            t.host_register = host_register;
            t.host_unregister = host_unregister;
            t.host_is_pinned = host_is_pinned;
            t.stream_launch = stream_launch;
            t.event_record = event_record;
            t.copy_to_device = copy_to_device;
            t.copy_to_host = copy_to_host;
            t.stream_is_capturing = stream_is_capturing;
            t.thread_begin = thread_begin;
            t.memory_is_reachable = nullptr;
            t.device_synchronize = nullptr;
            t.contents_hash = nullptr;
            t.unpack = nullptr;
            t.pack_tiles = t.unpack_tiles = nullptr;
            return t;
        }();
        return all;
    }
#undef SH_PASS
};

FakeBackend::FakeBackend() {
    sh_backend_device_info info = {};
    info.struct_size = sizeof info;
    if (host.device_open(0, "capacity=1MiB", &inner_, &info) != SH_OK) throw std::runtime_error(host.last_error());
}

FakeBackend::~FakeBackend() {
    open_gate();
    host.device_close(inner_);
}

std::unique_ptr<BackendDevice> FakeBackend::open() {
    sh_backend_device_info info = {};
    info.struct_size = sizeof info;
    info.staging_piece_bytes = piece_bytes;
    info.host_node = host_node;
    return std::make_unique<BackendDevice>(FakeTable::table(), reinterpret_cast<sh_backend_device*>(this), info);
}

void FakeBackend::fail_call(int64_t n, bool for_ever, const std::string& prefix) {
    std::lock_guard lock(mutex_);
    fail_at_ = n;
    fail_for_ever_ = for_ever;
    fail_name_ = prefix;
}

bool FakeBackend::refuses(const char* name) {
    std::lock_guard lock(mutex_);
    by_name_[name]++;
    if (fail_at_ == 0 || std::string(name).compare(0, fail_name_.size(), fail_name_) != 0) return false;
    if (fail_at_ > 1) return fail_at_--, false;
    if (!fail_for_ever_) fail_at_ = 0;
    return true;
}

void FakeBackend::note_success(const char* name) {
    std::lock_guard lock(mutex_);
    successes_[name]++;
}

int64_t FakeBackend::calls(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
}

size_t FakeBackend::exist(const std::string& what) const {
    std::lock_guard lock(mutex_);
    const auto count = [&](const std::string& name) {
        const auto found = successes_.find(name);
        return found == successes_.end() ? 0 : found->second;
    };
    return count(what + "_create") - count(what + "_destroy");
}

void FakeBackend::close_gate() { gate_open_ = false; }

void FakeBackend::open_gate() {
    gate_open_ = true;
    gate_open_.notify_all();
}

void FakeBackend::wait_for_gate() {
    gate_open_.wait(false);
    thread_local std::mt19937 random(static_cast<uint32_t>(address_of(&random)));
    if (const uint32_t delay = delay_us) std::this_thread::sleep_for(std::chrono::microseconds(random() % delay));
}

void FakeBackend::note_copy() {
    copies_run_++;
    copies_run_.notify_all();
}

void FakeBackend::wait_for_copies(int64_t count) {
    for (int64_t run = copies_run_; run < count; run = copies_run_) copies_run_.wait(run);
}

uint64_t FakeBackend::pinned_bytes() const {
    std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [at, size] : registered_) bytes += size;
    return bytes;
}

size_t FakeBackend::registrations() const {
    std::lock_guard lock(mutex_);
    return registered_.size();
}

}  // namespace stagehand::transfer::test
