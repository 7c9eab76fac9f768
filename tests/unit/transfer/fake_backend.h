// FakeBackend: a device of the host backend, all of whose copies may use any memory of the process. It can make any
// call fail, delay any work and refuse to pin, and it counts its calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend_device.h"

namespace stagehand::transfer::test {

class FakeBackend {
public:
    FakeBackend();
    ~FakeBackend();

    std::unique_ptr<BackendDevice> open();
    static FakeBackend& of(sh_backend_device* device) { return *reinterpret_cast<FakeBackend*>(device); }

    uint64_t piece_bytes = 64 << 10;
    uint64_t host_node = 0;  // 0: not known
    // Called before each registration. The registration is refused if the function returns false.
    std::function<bool(uint64_t bytes)> may_register;
    // The stream that takes part in a capture, or 0.
    std::atomic<sh_stream> capturing = 0;

    // Makes the n-th call from now on fail, once or for ever. 0: no call fails. Counts all calls, or only calls whose
    // names begin with `prefix`.
    void fail_call(int64_t n, bool for_ever = false, const std::string& prefix = "");
    int64_t calls(const std::string& name) const;

    // Work on streams sleeps a random time up to this before it begins.
    std::atomic<uint32_t> delay_us = 0;
    // A closed gate delays what is queued on any stream.
    void close_gate();
    void open_gate();

    uint64_t pinned_bytes() const;
    size_t registrations() const;
    size_t events() const { return exist("event"); }
    size_t streams() const { return exist("stream"); }
    // Waits until streams have run this many copies in all.
    void wait_for_copies(int64_t count);

private:
    friend struct FakeTable;

    bool refuses(const char* name);
    void note_success(const char* name);
    size_t exist(const std::string& what) const;
    void wait_for_gate();
    void note_copy();

    sh_backend_device* inner_ = nullptr;
    mutable std::mutex mutex_;
    std::map<uint64_t, uint64_t> registered_;  // first byte to size
    std::map<std::string, int64_t> by_name_;
    std::map<std::string, size_t> successes_;
    std::atomic<bool> gate_open_ = true;
    std::atomic<int64_t> copies_run_ = 0;
    int64_t fail_at_ = 0;
    bool fail_for_ever_ = false;
    std::string fail_name_;
};

}  // namespace stagehand::transfer::test
