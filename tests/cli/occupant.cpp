// An engine for tests: its memory on the host device leaves and comes back as other processes ask. Standard input
// drives the program. It answers each line by one line of JSON on standard output.
//
//     start [ADDRESS [TOKEN]]   sh_control_start(); answers the address
//     stop                      the end of the control
//     check                     whether the weights have the contents that they had at first
//     refuse TEXT               the next pause is refused with this text
//     hold                      pauses take until the next line comes
//     let go                    ends that
//     close                     sh_device_close()
//     pauses                    how many pauses have begun
//     stop in pause             the next pause tries to end the control
//
// It ends with its input.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include <stagehand/stagehand.h>
#include <nlohmann/json.hpp>

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t weights_bytes = 6 * mib, cache_bytes = 4 * mib;

std::string last_error() {
    std::string text(sh_last_error(nullptr, 0), '\0');
    if (!text.empty()) sh_last_error(text.data(), text.size() + 1);
    return text;
}

void check(sh_status status, const char* doing) {
    if (status >= 0) return;
    std::fprintf(stderr, "%s: %s\n", doing, last_error().c_str());
    std::exit(1);
}

Json outcome(sh_status status) {
    return status >= 0 ? Json("done") : Json{{"status", sh_status_string(status)}, {"text", last_error()}};
}

class Occupant {
public:
    Occupant() {
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.backend_options = "capacity=64MiB;bandwidth=10GB/s";
        check(sh_device_open("host", &options, &device_), "device");
        weights_ = allocate("weights", weights_bytes, SH_CONTENTS_STAGE);
        allocate("kv_cache", cache_bytes, SH_CONTENTS_DROP);
        for (std::uint64_t i = 0; i < weights_bytes; ++i) bytes()[i] = static_cast<unsigned char>(i * 7 + i / 251);
        check(sh_occupancy_add_callbacks(device_, before_pause, nullptr, this, nullptr), "callbacks");
    }
    ~Occupant() { close(); }
    Occupant(const Occupant&) = delete;
    Occupant& operator=(const Occupant&) = delete;

    Json obey(const std::string& line) {
        std::istringstream words(line);
        std::string word, address, token;
        words >> word;
        if (word == "start") {
            words >> address >> token;
            return start(address, token);
        }
        if (line == "stop in pause") {
            stops_ = true;
            return "ready";
        }
        if (word == "stop") return stop();
        if (word == "check") return are_weights_whole();
        if (word == "refuse") {
            const std::lock_guard lock(mutex_);
            refusal_ = line.substr(7);
            return "ready";
        }
        if (word == "hold" || word == "let") {
            holds_ = word == "hold";
            return "ready";
        }
        if (word == "close") return close();
        if (word == "pauses") return pauses_.load();
        return "unknown";
    }

private:
    std::uint64_t allocate(const char* tag, std::uint64_t size, std::uint32_t contents) {
        sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
        options.tag = tag;
        options.contents = contents;
        std::uint64_t address = 0;
        check(sh_alloc(device_, size, &options, &address), "allocation");
        return address;
    }
    unsigned char* bytes() const { return reinterpret_cast<unsigned char*>(weights_); }

    Json start(const std::string& address, const std::string& token) {
        sh_control_options options = SH_CONTROL_OPTIONS_INIT;
        options.address = address.empty() ? nullptr : address.c_str();
        options.token = token.empty() ? nullptr : token.c_str();
        auto info = sh_sized<sh_control_info>();
        const sh_status status = sh_control_start(device_, &options, &info, &control_);
        return status < 0 ? outcome(status) : Json{{"address", info.address}, {"port", info.port}};
    }
    Json stop() {
        const sh_status status = sh_scope_end(control_);
        if (status >= 0) control_ = nullptr;
        return outcome(status);
    }
    Json are_weights_whole() const {
        auto info = sh_sized<sh_occupancy_info>();
        check(sh_occupancy_get_info(device_, "weights", &info), "state");
        if (info.state != SH_OCCUPANCY_RUNNING) return "released";
        for (std::uint64_t i = 0; i < weights_bytes; ++i)
            if (bytes()[i] != static_cast<unsigned char>(i * 7 + i / 251)) return "changed";
        return "whole";
    }
    Json close() {
        sh_device_close(device_);
        device_ = nullptr;
        return "closed";
    }

    static int32_t before_pause(const char* const*, uint64_t, char* message, uint64_t message_bytes, void* data) {
        auto& self = *static_cast<Occupant*>(data);
        self.pauses_++;
        while (self.holds_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::string refusal;
        if (self.stops_.exchange(false)) refusal = sh_status_string(sh_scope_end(self.control_));
        const std::lock_guard lock(self.mutex_);
        if (!self.refusal_.empty()) refusal = std::exchange(self.refusal_, "");
        if (refusal.empty()) return 0;
        std::snprintf(message, message_bytes, "%s", refusal.c_str());
        return 1;
    }

    sh_device* device_ = nullptr;
    sh_scope* control_ = nullptr;
    std::uint64_t weights_ = 0;
    std::atomic<bool> holds_{false}, stops_{false};
    std::atomic<int> pauses_{0};
    std::mutex mutex_;
    std::string refusal_;  // guarded by mutex_
};

}  // namespace

int main() {
    Occupant occupant;
    std::cout << Json("ready") << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << occupant.obey(line) << std::endl;
}
