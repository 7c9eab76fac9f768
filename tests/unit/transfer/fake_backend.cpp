#include "fake_backend.h"

#include <chrono>
#include <cstring>
#include <random>

#include "backend/functions.h"

namespace stagehand::transfer::test {
namespace {

thread_local std::string error_text;

uint64_t address_of(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

}  // namespace

class FakeStream {
public:
    explicit FakeStream(FakeBackend& backend) : backend_(backend), thread_([this] { run(); }) {}
    ~FakeStream() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    void push(std::function<void()> work) {
        {
            std::lock_guard lock(mutex_);
            queue_.push_back(std::move(work));
            pushed_++;
        }
        changed_.notify_all();
    }
    void synchronize() {
        std::unique_lock lock(mutex_);
        const uint64_t all = pushed_;
        changed_.wait(lock, [&] { return finished_ >= all; });
    }

private:
    void run() {
        std::mt19937 random(static_cast<uint32_t>(address_of(this)));
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) return;
            const auto work = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            backend_.wait_for_gate();
            if (const uint32_t delay = backend_.delay_us)
                std::this_thread::sleep_for(std::chrono::microseconds(random() % delay));
            work();
            lock.lock();
            finished_++;
            changed_.notify_all();
        }
    }

    FakeBackend& backend_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    uint64_t pushed_ = 0, finished_ = 0;
    bool stopping_ = false;
    std::thread thread_;
};

// The table's functions.
struct FakeTable {
    using Device = sh_backend_device;

    static sh_status refuse(FakeBackend& fake, const char* name) {
        if (!fake.refuses(name)) return SH_OK;
        error_text = std::string("injected into ") + name;
        return SH_ERROR_BACKEND;
    }
    static sh_status unsupported() {
        error_text = "not in the fake";
        return SH_ERROR_UNSUPPORTED;
    }
    static FakeStream* find_stream(FakeBackend& fake, sh_stream stream) {
        std::lock_guard lock(fake.mutex_);
        return fake.streams_.at(stream).get();
    }
    static std::shared_ptr<FakeBackend::Event> find_event(FakeBackend& fake, sh_backend_event event) {
        std::lock_guard lock(fake.mutex_);
        return fake.events_.at(event);
    }

    static sh_status probe(uint32_t* count) { return *count = 1, SH_OK; }
    static sh_status device_open(uint32_t, const char*, Device**, sh_backend_device_info*) { return unsupported(); }
    static void device_close(Device*) {}
    static const char* last_error() { return error_text.c_str(); }
    static sh_status memory_info(Device*, uint64_t*, uint64_t*) { return unsupported(); }
    static sh_status pages_create(Device*, uint64_t, uint64_t, sh_backend_page*) { return unsupported(); }
    static sh_status pages_destroy(Device*, uint64_t, uint64_t, const sh_backend_page*) { return unsupported(); }
    static sh_status range_reserve(Device*, uint64_t, uint64_t, uint64_t*) { return unsupported(); }
    static sh_status range_free(Device*, uint64_t, uint64_t) { return unsupported(); }
    static sh_status pages_map(Device*, uint64_t, uint64_t, uint64_t, const sh_backend_page*) { return unsupported(); }
    static sh_status pages_unmap(Device*, uint64_t, uint64_t, uint64_t) { return unsupported(); }

    static sh_status host_register(Device* device, void* memory, uint64_t bytes) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "host_register")) return status;
        if (fake.may_register && !fake.may_register(bytes)) return error_text = "refused to pin", SH_ERROR_BACKEND;
        const uint64_t begin = address_of(memory);
        std::lock_guard lock(fake.mutex_);
        for (const auto& [at, size] : fake.registered_)
            if (at < begin + bytes && begin < at + size) return error_text = "already registered", SH_ERROR_BACKEND;
        fake.registered_[begin] = bytes;
        return SH_OK;
    }
    static sh_status host_unregister(Device* device, void* memory) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "host_unregister")) return status;
        std::lock_guard lock(fake.mutex_);
        if (fake.registered_.erase(address_of(memory))) return SH_OK;
        return error_text = "was not registered", SH_ERROR_BACKEND;
    }
    static sh_status host_is_pinned(Device* device, const void* memory, uint64_t bytes, uint32_t* out_pinned) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "host_is_pinned")) return status;
        std::lock_guard lock(fake.mutex_);
        auto range = fake.registered_.upper_bound(address_of(memory));
        *out_pinned =
            range != fake.registered_.begin() && (--range, address_of(memory) + bytes <= range->first + range->second);
        return SH_OK;
    }

    static sh_status stream_create(Device* device, sh_stream* out_stream) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "stream_create")) return status;
        std::lock_guard lock(fake.mutex_);
        *out_stream = fake.next_++;
        fake.streams_[*out_stream] = std::make_unique<FakeStream>(fake);
        return SH_OK;
    }
    static sh_status stream_destroy(Device* device, sh_stream stream) {
        FakeBackend& fake = FakeBackend::of(device);
        std::unique_ptr<FakeStream> gone;
        std::lock_guard lock(fake.mutex_);
        gone = std::move(fake.streams_.at(stream));
        fake.streams_.erase(stream);
        return SH_OK;
    }
    static sh_status stream_synchronize(Device* device, sh_stream stream) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "stream_synchronize")) return status;
        find_stream(fake, stream)->synchronize();
        return SH_OK;
    }
    static sh_status stream_wait_event(Device* device, sh_stream stream, sh_backend_event event) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "stream_wait_event")) return status;
        const auto waited = find_event(fake, event);
        uint64_t target = 0;
        {
            std::lock_guard lock(fake.mutex_);
            target = waited->recorded;
        }
        find_stream(fake, stream)->push([&fake, waited, target] {
            std::unique_lock lock(fake.mutex_);
            fake.changed_.wait(lock, [&] { return waited->done >= target; });
        });
        return SH_OK;
    }
    static sh_status stream_launch(Device* device, sh_stream stream, void (*fn)(void*), void* user_data, int64_t) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "stream_launch")) return status;
        find_stream(fake, stream)->push([fn, user_data] { fn(user_data); });
        return SH_OK;
    }

    static sh_status event_create(Device* device, uint32_t, sh_backend_event* out_event) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "event_create")) return status;
        std::lock_guard lock(fake.mutex_);
        *out_event = fake.next_++;
        fake.events_[*out_event] = std::make_shared<FakeBackend::Event>();
        return SH_OK;
    }
    static sh_status event_destroy(Device* device, sh_backend_event event) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "event_destroy")) return status;
        std::lock_guard lock(fake.mutex_);
        fake.events_.erase(event);
        return SH_OK;
    }
    static sh_status event_record(Device* device, sh_backend_event event, sh_stream stream) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "event_record")) return status;
        const auto recorded = find_event(fake, event);
        uint64_t target = 0;
        {
            std::lock_guard lock(fake.mutex_);
            target = ++recorded->recorded;
        }
        find_stream(fake, stream)->push([&fake, recorded, target] {
            std::lock_guard lock(fake.mutex_);
            recorded->done = target;
            fake.changed_.notify_all();
        });
        return SH_OK;
    }
    static sh_status event_query(Device* device, sh_backend_event event, uint32_t* out_done) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "event_query")) return status;
        const auto asked = find_event(fake, event);
        std::lock_guard lock(fake.mutex_);
        *out_done = asked->done == asked->recorded;
        return SH_OK;
    }
    static sh_status event_synchronize(Device* device, sh_backend_event event) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "event_synchronize")) return status;
        const auto waited = find_event(fake, event);
        std::unique_lock lock(fake.mutex_);
        const uint64_t target = waited->recorded;
        fake.changed_.wait(lock, [&] { return waited->done >= target; });
        return SH_OK;
    }
    static sh_status stream_is_capturing(Device* device, sh_stream stream, uint32_t* capturing) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, "stream_is_capturing")) return status;
        *capturing = stream == fake.capturing;
        return SH_OK;
    }
    static sh_status event_elapsed(Device*, sh_backend_event, sh_backend_event, int64_t*) { return unsupported(); }

    static sh_status copy(Device* device, const char* name, sh_stream stream, void* to, const void* from,
                          uint64_t bytes) {
        FakeBackend& fake = FakeBackend::of(device);
        if (sh_status status = refuse(fake, name)) return status;
        if (fake.refused_destination.load() == to) return error_text = "refused destination", SH_ERROR_BACKEND;
        find_stream(fake, stream)->push([&fake, to, from, bytes] {
            std::memcpy(to, from, bytes);
            std::lock_guard lock(fake.mutex_);
            fake.copies_run_++;
            fake.changed_.notify_all();
        });
        return SH_OK;
    }
    static sh_status copy_to_device(Device* device, sh_stream stream, uint64_t to, const void* from, uint64_t bytes) {
        return copy(device, "copy_to_device", stream, reinterpret_cast<void*>(to), from, bytes);
    }
    static sh_status copy_to_host(Device* device, sh_stream stream, void* to, uint64_t from, uint64_t bytes) {
        return copy(device, "copy_to_host", stream, to, reinterpret_cast<const void*>(from), bytes);
    }
    static sh_status copy_on_device(Device*, sh_stream, uint64_t, uint64_t, uint64_t) { return unsupported(); }
    static sh_status fill(Device*, sh_stream, uint64_t, uint8_t, uint64_t) { return unsupported(); }
    static sh_status thread_begin(Device* device) { return refuse(FakeBackend::of(device), "thread_begin"); }

    static const sh_backend& table() {
        static const sh_backend all = [] {
            sh_backend t = {};
            t.struct_size = sizeof t;
            t.spi_version = SH_BACKEND_SPI_VERSION;
            t.name = "fake";
            t.version = "1";
#define SH_SET(name) t.name = name;
            SH_BACKEND_REQUIRED_FUNCTIONS(SH_SET)
#undef SH_SET
            t.stream_is_capturing = stream_is_capturing;
            t.thread_begin = thread_begin;
            return t;
        }();
        return all;
    }
};

FakeBackend::FakeBackend() = default;
FakeBackend::~FakeBackend() = default;

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
    failed_ = false;
}

bool FakeBackend::refuses(const char* name) {
    std::lock_guard lock(mutex_);
    calls_++;
    by_name_[name]++;
    if (fail_at_ == 0 || std::string(name).compare(0, fail_name_.size(), fail_name_) != 0) return false;
    if (fail_at_ > 1) return fail_at_--, false;
    if (!fail_for_ever_) fail_at_ = 0;
    failed_ = true;
    return true;
}

int64_t FakeBackend::calls(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
}

void FakeBackend::close_gate() {
    std::lock_guard lock(mutex_);
    gate_open_ = false;
}

void FakeBackend::open_gate() {
    std::lock_guard lock(mutex_);
    gate_open_ = true;
    changed_.notify_all();
}

void FakeBackend::wait_for_gate() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gate_open_; });
}

void FakeBackend::wait_for_copies(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copies_run_ >= count; });
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

size_t FakeBackend::events() const {
    std::lock_guard lock(mutex_);
    return events_.size();
}

size_t FakeBackend::streams() const {
    std::lock_guard lock(mutex_);
    return streams_.size();
}

}  // namespace stagehand::transfer::test
