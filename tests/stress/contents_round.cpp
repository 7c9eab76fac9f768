// A round: a device with one runtime or two, and the threads that use them.
#include <thread>

#include "contents_engine.h"
#include "contents_watchdog.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"
#include "transfer/carrier/carrier.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kHelperBytes = 128 << 20, kMostPages = 1024;

void replace_in(std::string* text, const std::string& key, const std::string& value) {
    if (const size_t at = text->find(key); at != std::string::npos) text->replace(at, key.size(), value);
}

}  // namespace

Round::Round(const Setting& setting, uint64_t seed) : setting_(setting), seed_(seed) {}

uint64_t Round::pages() const {
    uint64_t pages = 0;
    for (const auto& party : parties_) pages += party->pages();
    return pages;
}

std::string Round::where() const {
    const std::string plain = devices_without_pages() ? " STAGEHAND_TEST_NO_PAGES=1" : "";
    return std::string("in ") + setting_.name + "; to have it again: STAGEHAND_STRESS_SEED=" + std::to_string(seed_) +
           plain + " and --gtest_filter=*" + setting_.name;
}

std::string Round::summary() const {
    uint64_t views = 0, write_backs = 0, updates = 0, registrations = 0, refused = 0, lost = 0, loads = 0, plans = 0,
             helped = 0;
    for (const auto& party : parties_) {
        views += party->views;
        write_backs += party->write_backs;
        updates += party->updates;
        registrations += party->registrations;
        refused += party->refused;
        lost += party->lost;
        loads += party->loads;
        plans += party->plans;
        helped += party->helped;
    }
    return std::to_string(views) + " views compared, " + std::to_string(refused) + " refused, " +
           std::to_string(write_backs) + " write-backs, " + std::to_string(updates) + " updates, " +
           std::to_string(registrations) + " registrations, " + std::to_string(loads) + " loads, " +
           std::to_string(plans) + " plans, " + std::to_string(lost) + " lost" +
           (setting_.helped ? ", " + std::to_string(helped) + " bytes by the helper" : "");
}

void Round::run() {
    std::mt19937_64 random(seed_);
    const auto pick = [&](uint64_t count) { return random() % count; };
    const uint32_t threads = static_cast<uint32_t>(3 + pick(3));
    DeviceSettings settings;
    if (*setting_.backend) settings.name = setting_.backend;
    settings.options += setting_.options;
    replace_in(&settings.options, "SEED", std::to_string(seed_ + 1));
    replace_in(&settings.options, "SEED", std::to_string(seed_ + 2));
    if (*setting_.backend)
        settings.options = (on_host_backend() ? settings.options + ";" : std::string()) + "wrap=" + device_under_test();
    if (setting_.helped) {
        transfer::Carrier::set_least_bytes(512);  // so that helpers bring a part of most blocks
        DeviceSettings helper = settings;
        helper.name += ":1";
        if (*setting_.backend) replace_in(&helper.options, "wrap=host", "wrap=host:1");
        helper.budget_bytes = kHelperBytes;
        helper_ = std::make_unique<TestDevice>(helper);
        settings.helpers = helper.name;
        settings.name += ":0";
    }
    settings.budget_bytes = kMostPages * kPage;
    settings.staging_threads = static_cast<uint32_t>(1 + pick(3));
    settings.staging_bytes = (16 + pick(48)) * kPage;
    device_ = std::make_unique<TestDevice>(settings);
    journal_ = std::make_unique<Journal>(threads + 1);
    for (uint32_t k = pick(3) ? 1 : 2; k-- > 0;)
        parties_.push_back(std::make_unique<Party>(*this, static_cast<uint32_t>(parties_.size()), random, threads));
    // Memory is short in the round, unless the smallest plans need more.
    for (uint64_t part = 4 - pick(3); part > 0; part--)
        if (sh_device_set_budget(device_->get(), (pages() / part + pick(pages() / 3)) * kPage) == SH_OK) break;
    std::vector<Party*> parties;
    for (const auto& party : parties_) parties.push_back(party.get());
    const Watchdog watchdog(*journal_, where());
    ContentsEngine(*this, parties, threads).begin();
    std::vector<std::thread> engines;
    for (uint32_t t = 0; t < threads; t++)
        engines.emplace_back([&, t] {
            ContentsEngine engine(*this, parties, t);
            for (uint64_t k = 0; k < setting_.operations && !failed(); k++) engine.operate();
        });
    for (std::thread& engine : engines) engine.join();
    if (setting_.faulty) FAULT(sh_fault_disarm)();
    for (const auto& party : parties_) ContentsEngine::finish(*party, journal_->of(threads));
    device_->synchronize();
    for (const auto& party : parties_) party->check_retired();
    EXPECT_LE(device_->memory().peak_bytes, kMostPages * kPage);
    if (!setting_.faulty) {
        EXPECT_EQ(device_->memory().used_bytes, 0u);
    }
    device_.reset();
    if (!setting_.faulty && helper_) {
        EXPECT_EQ(helper_->memory().used_bytes, 0u);
    }
    helper_.reset();
    if (!setting_.faulty) {
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }
}

}  // namespace stagehand::test
