// Random tenants of one arbiter ask, protect, reserve, come as guests, step and leave, and its budget changes. The
// plain model computes every expected status, share and figure.
#include "arbiter_model.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>

namespace stagehand::test {
namespace {

constexpr uint64_t kBudget = 140, kLeast = 80, kMost = 180;
constexpr size_t kTenants = 8;

class ArbiterRun;

class RandomTenant : public core::Tenant {
public:
    RandomTenant(ArbiterRun& run, std::string name) : run_(run), name_(std::move(name)) {}
    void try_to_change() override;
    void feel_pressure(uint64_t pages) override { EXPECT_GT(pages, 0u); }
    std::string tenant_name() const override { return name_; }

    uint64_t reservation = 0;
    bool in_step = false;

private:
    ArbiterRun& run_;
    const std::string name_;
};

class ArbiterRun {
public:
    explicit ArbiterRun(uint64_t seed)
        : seed_(seed), random_(seed), model_(0), arbiter_([this] { return model_.now_ns; }, 4096) {
        expect(arbiter_.set_total(kBudget), model_.set_total(kBudget), "set_total");
        for (size_t i = 0; i < kTenants; i++) replace(i);
    }

    void operate() {
        model_.now_ns += pick(1000);
        RandomTenant& tenant = *tenants_[pick(kTenants)];
        switch (pick(16)) {
            case 0:
            case 1:
            case 2:
                return ask(tenant, pick(4) > 0);
            case 3:
            case 4:
                return step(tenant);
            case 5:
                return keep(tenant);
            case 6:
                return reserve(tenant);
            case 7:
                return release(tenant);
            case 8:
                return begin_guest(tenant);
            case 9:
            case 10:
                return end_guest(tenant);
            case 11:
                return set_total(kLeast + pick(kMost - kLeast + 1));
            case 12: {
                const uint64_t present = pick(2) ? UINT64_MAX : 60 + pick(kMost);
                arbiter_.set_present(present);
                model_.set_present(present);
                return check("set_present");
            }
            case 13:
                return lend();
            case 14:
                if (pick(8) == 0) leave(tenant);
                return;
            default:
                if (tenant.in_step) return;
                arbiter_.withdraw(tenant);
                model_.withdraw(tenant);
                return check("withdraw");
        }
    }

    // At the edge of a step, a tenant asks again and holds what it got.
    void ask(RandomTenant& tenant, bool reclaim) {
        core::Needs needs;
        needs.least_pages = pick(12);
        needs.wanted_pages = needs.least_pages + pick(60);
        const double slope = static_cast<double>(1 + pick(50));
        for (const uint64_t pages : {needs.least_pages, needs.wanted_pages})
            needs.curve.push_back({pages, slope * static_cast<double>(200 - pages)});
        uint64_t got = 0, expected = 0;
        sh_status status = model_.ask(tenant, needs);
        const Status result = arbiter_.request(tenant, needs, reclaim, &got);
        if (status == SH_OK) status = model_.grant(tenant, &expected);
        expect(result, status, "request");
        EXPECT_EQ(got, expected);
        if (status == SH_OK) settle(tenant, got);
    }

    void settle(RandomTenant& tenant, uint64_t pages) {
        core::Holding holding;
        holding.pages = pages;
        holding.kept_pages = std::min(pages, model_.of(tenant).holding.kept_pages);
        for (uint64_t left = pages - holding.kept_pages, due = 0; left > 0;) {
            const uint64_t part = std::min<uint64_t>(left, 1 + pick(6));
            holding.parts.push_back({due += pick(500), part});
            left -= part;
        }
        model_.settle(tenant, holding);
        arbiter_.settle(tenant, std::move(holding));
        check("settle");
    }

    const ArbiterModel::Counts& counts() const { return model_.counts(); }

private:
    uint64_t pick(uint64_t count) { return random_() % count; }

    void expect(const Status& status, sh_status expected, const char* what) {
        EXPECT_EQ(status.code(), expected) << what << ": " << status.text();
        check(what);
    }

    void check(const char* what) {
        const std::string wrong = model_.check(arbiter_);
        EXPECT_EQ(wrong, "") << "seed " << seed_ << ", " << what << "\n" << model_.describe();
    }

    void replace(size_t i) {
        tenants_[i] = std::make_unique<RandomTenant>(*this, "tenant " + std::to_string(i));
        arbiter_.join(*tenants_[i]);
        model_.join(*tenants_[i]);
        check("join");
    }

    void leave(RandomTenant& tenant) {
        const uint64_t lost = std::min<uint64_t>(model_.of(tenant).granted, pick(16) ? 0 : 1);
        arbiter_.leave(tenant, lost);
        model_.leave(tenant, lost);
        check("leave");
        for (size_t i = 0; i < kTenants; i++)
            if (tenants_[i].get() == &tenant) return replace(i);
    }

    void step(RandomTenant& tenant) {
        tenant.in_step = !tenant.in_step;
        if (!tenant.in_step) return;
        if (arbiter_.wants_change(tenant)) ask(tenant, true);
        arbiter_.note_step(tenant);
        model_.note_step(tenant);
        check("note_step");
    }

    void keep(RandomTenant& tenant) {
        const uint64_t held = model_.of(tenant).holding.pages, pages = pick(2) ? 0 : pick(held + 1);
        arbiter_.keep(tenant, pages);
        model_.keep(tenant, pages);
        check("keep");
    }

    void reserve(RandomTenant& tenant) {
        const uint64_t pages = pick(8) ? pick(40) : kMost + 1;
        const auto priority = pick(2) ? policy::Priority::primary : policy::Priority::secondary;
        const sh_status expected = model_.reserve(tenant, pages, priority);
        expect(arbiter_.reserve(tenant, pages, priority, &tenant.reservation), expected, "reserve");
    }

    void release(RandomTenant& tenant) {
        EXPECT_FALSE(arbiter_.release_reservation(tenant, tenant.reservation + 1));
        if (!tenant.reservation) return;
        EXPECT_TRUE(arbiter_.release_reservation(tenant, tenant.reservation));
        model_.release(tenant);
        check("release_reservation");
    }

    void begin_guest(RandomTenant& tenant) {
        core::GuestTerms terms;
        terms.asked_pages = pick(3) ? pick(30) : 0;
        terms.least_pages = pick(10);
        terms.pages = terms.asked_pages ? terms.asked_pages : pick(4) ? terms.least_pages + pick(20) : 0;
        terms.workspace_pages = pick(2) ? pick(20) : 0;
        terms.shrink = pick(2);
        const sh_status expected = model_.begin_guest(tenant, terms);
        expect(arbiter_.begin_guest(tenant, terms), expected, "begin_guest");
        if (expected == SH_OK) arbiter_.reclaimer().make_room(tenant);
        EXPECT_TRUE(expected != SH_OK || arbiter_.check_room(tenant).code() != SH_ERROR_BUDGET);
        check("make_room");
    }

    void end_guest(RandomTenant& tenant) {
        if (!model_.of(tenant).times_guest) return;
        EXPECT_EQ(arbiter_.end_guest(tenant), model_.of(tenant).times_guest == 1);
        model_.end_guest(tenant);
        check("end_guest");
    }

    void set_total(uint64_t pages) {
        const sh_status expected = model_.set_total(pages);
        expect(arbiter_.set_total(pages), expected, "set_total");
        if (pick(2)) arbiter_.reclaimer().reclaim();
        check("reclaim");
    }

    void lend() {
        const uint64_t least = 1 + pick(4), most = least + pick(20), pages = arbiter_.lend(least, most);
        EXPECT_EQ(pages, model_.lend(least, most));
        if (pages && pick(2)) ask(*tenants_[pick(kTenants)], true);
        const uint64_t lost = pages && pick(64) == 0 ? 1 : 0;
        arbiter_.take_back(pages, lost);
        model_.take_back(pages, lost);
        check("take_back");
    }

    const uint64_t seed_;
    std::mt19937_64 random_;
    ArbiterModel model_;
    core::Arbiter arbiter_;
    std::array<std::unique_ptr<RandomTenant>, kTenants> tenants_;
};

// A tenant in a step gives nothing back now.
void RandomTenant::try_to_change() {
    if (!in_step) run_.ask(*this, true);
}

TEST(ArbiterModel, every_share_is_what_the_plain_model_computes) {
    using Counts = ArbiterModel::Counts;
    Counts all;
    const std::pair<const char*, uint64_t Counts::*> events[] = {
        {"refused_asks", &Counts::refused_asks},
        {"short_grants", &Counts::short_grants},
        {"refused_grants", &Counts::refused_grants},
        {"primary", &Counts::primary},
        {"secondary", &Counts::secondary},
        {"refused_reservations", &Counts::refused_reservations},
        {"gave_way", &Counts::gave_way},
        {"guests", &Counts::guests},
        {"shrunk_guests", &Counts::shrunk_guests},
        {"refused_guests", &Counts::refused_guests},
        {"workspaces", &Counts::workspaces},
        {"lowered", &Counts::lowered},
        {"raised", &Counts::raised},
        {"refused_totals", &Counts::refused_totals},
        {"kept", &Counts::kept},
        {"kept_in_part", &Counts::kept_in_part},
        {"over_the_budget", &Counts::over_the_budget},
        {"redivided_by_use", &Counts::redivided_by_use}};
    for (uint64_t seed = 0; seed < 20 && !testing::Test::HasFailure(); seed++) {
        ArbiterRun run(seed);
        for (size_t k = 0; k < 1000 && !testing::Test::HasFailure(); k++) run.operate();
        for (const auto& [name, which] : events) all.*which += run.counts().*which;
    }
    // A run that never met these events proves nothing about them.
    for (const auto& [name, which] : events) EXPECT_GT(all.*which, 0u) << name;
}

}  // namespace
}  // namespace stagehand::test
