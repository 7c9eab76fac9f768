// Arguments that no caller can mean: counts that no array has, structs of a size that no version has, and options out
// of range. The library refuses each argument by its name, and nothing changes.
#include <cstring>
#include <functional>

#include "engine.h"

namespace stagehand::test {
namespace {

struct Call {
    const char* name;
    std::function<sh_status()> make;
    const char* count = "count";  // the name of the argument that counts
};

// A runtime with one block that was never used.
class Arguments : public testing::Test {
protected:
    TestDevice device_;
    Model model_{device_, equal_blocks(1, kPage, Origin::pinned, SH_BLOCK_MUTABLE)};
    sh_runtime* const runtime_ = model_.runtime();
    sh_block block_ = model_.id(0);
    sh_block out_ = 77;
    sh_segment segment_ = SH_SEGMENT_INIT;
    sh_block_desc desc_ = SH_BLOCK_DESC_INIT;
    sh_use use_ = SH_USE_INIT;
    sh_view view_ = sh_sized<sh_view>();
    sh_backend_info backend_ = sh_sized<sh_backend_info>();

    Arguments() {
        segment_ = model_.source(0).segment();
        desc_.bytes = kPage;
        desc_.segments = &segment_;
        desc_.segment_count = 1;
        use_.block = block_;
    }
    // Checks the state after refused calls: no block was registered, no view is held, and the block works.
    void expect_nothing_changed() {
        EXPECT_EQ(out_, 77u);
        EXPECT_EQ(view_.address, nullptr);
        EXPECT_EQ(sh_release(runtime_, block_, SH_STREAM_HOST), SH_ERROR_INVALID_STATE) << "no view is held";
        EXPECT_SUCCEEDS(model_.use(0));
    }
};

// No array is larger than the memory.
TEST_F(Arguments, counts_that_no_array_has_are_refused_by_name) {
    const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / sizeof(sh_block) + 1, UINT64_MAX / 16, uint64_t(1) << 60,
                               (uint64_t(1) << 32) + 1};
    for (const uint64_t count : counts) {
        size_t backends = 77;
        sh_block_desc of_many = desc_;
        of_many.segment_count = count;
        const Call calls[] = {
            {"register", [&] { return sh_register_blocks(runtime_, &desc_, count, &out_); }},
            {"segments", [&] { return sh_register_blocks(runtime_, &of_many, 1, &out_); }, "segment_count"},
            {"unregister", [&] { return sh_unregister_blocks(runtime_, &block_, count); }},
            {"invalidate", [&] { return sh_invalidate_blocks(runtime_, &block_, count); }},
            {"update begin", [&] { return sh_source_update_begin(runtime_, &block_, count); }},
            {"update end", [&] { return sh_source_update_end(runtime_, &block_, count); }},
            {"write back", [&] { return sh_write_back(runtime_, &block_, count); }},
            {"schedule", [&] { return sh_set_schedule(runtime_, &use_, count); }},
            {"acquire", [&] { return sh_acquire_many(runtime_, &block_, count, SH_STREAM_HOST, 0, &view_); }},
            {"prefetch", [&] { return sh_prefetch(runtime_, &block_, count); }},
            {"protect", [&] { return sh_protect_blocks(runtime_, &block_, count, nullptr); }},
            {"backends", [&] { return sh_backend_list(&backend_, count, &backends); }, "capacity"},
        };
        for (const Call& call : calls) {
            EXPECT_EQ(call.make(), SH_ERROR_INVALID_ARGUMENT) << call.name << " of " << count << ": " << why();
            EXPECT_NE(why().find(std::to_string(count)), std::string::npos) << call.name << ": " << why();
            EXPECT_NE(why().find(call.count), std::string::npos) << call.name << ": " << why();
        }
        EXPECT_EQ(backends, 77u);
    }
    expect_nothing_changed();
}

// Structs of later versions are larger by whole words. With other sizes, the second element of an array would begin
// between two words.
template <class Struct>
struct Odd {
    alignas(16) char bytes[3 * sizeof(Struct)] = {};

    // Two elements. Each says that it is larger by `more` bytes.
    Odd(const Struct& known, uint32_t more) {
        Struct element = known;
        element.struct_size = static_cast<uint32_t>(sizeof element) + more;
        std::memcpy(bytes, &element, sizeof element);
        std::memcpy(bytes + element.struct_size, &element, sizeof element);
    }
    Struct* first() { return reinterpret_cast<Struct*>(bytes); }
};

TEST_F(Arguments, struct_sizes_that_no_version_can_have_are_refused) {
    for (const uint32_t more : {1u, 2u, 4u, 5u, 12u}) {
        Odd<sh_segment> segments(segment_, more);
        Odd<sh_block_desc> descs(desc_, more);
        Odd<sh_use> uses(use_, more);
        Odd<sh_view> views(view_, more);
        Odd<sh_backend_info> backends(backend_, more);
        Odd<sh_memory_info> memory(sh_sized<sh_memory_info>(), more);
        Odd<sh_device_options> options(SH_DEVICE_OPTIONS_INIT, more);
        Odd<sh_host_options> host(SH_HOST_OPTIONS_INIT, more);
        Odd<sh_helper_options> helpers(SH_HELPER_OPTIONS_INIT, more);
        sh_device_options with_host = SH_DEVICE_OPTIONS_INIT, with_helpers = SH_DEVICE_OPTIONS_INIT;
        with_host.host = host.first(), with_helpers.helpers = helpers.first();
        const sh_block both[] = {block_, block_};
        sh_block_desc with_odd_segments = desc_;
        with_odd_segments.segments = segments.first();
        with_odd_segments.segment_count = 2;
        uint64_t count = 77;
        sh_device* again = nullptr;
        std::vector<Call> calls = {
            {"descs", [&] { return sh_register_blocks(runtime_, descs.first(), 2, &out_); }},
            {"descs", [&] { return sh_register_blocks(runtime_, descs.first(), 1, &out_); }},
            {"segments", [&] { return sh_register_blocks(runtime_, &with_odd_segments, 1, &out_); }},
            {"uses", [&] { return sh_set_schedule(runtime_, uses.first(), 2); }},
            {"out_views", [&] { return sh_acquire_many(runtime_, both, 2, SH_STREAM_HOST, 0, views.first()); }},
            {"out_view", [&] { return sh_acquire(runtime_, block_, SH_STREAM_HOST, 0, views.first()); }},
            {"out_info", [&] { return sh_device_get_memory(device_.get(), memory.first()); }},
            {"options", [&] { return sh_device_open(device_under_test().c_str(), options.first(), &again); }},
            {"options.host", [&] { return sh_device_open(device_under_test().c_str(), &with_host, &again); }},
            {"options.helpers", [&] { return sh_device_open(device_under_test().c_str(), &with_helpers, &again); }},
        };
        if (more % alignof(sh_backend_info))  // of half words
            calls.push_back({"infos", [&] { return sh_backend_list(backends.first(), 2, &count); }});
        for (const Call& call : calls) {
            EXPECT_EQ(call.make(), SH_ERROR_INVALID_STRUCT) << call.name << " of " << more << " more bytes: " << why();
            EXPECT_NE(why().find(std::string(call.name) + ".struct_size"), std::string::npos) << why();
        }
        EXPECT_EQ(count, 77u);
        EXPECT_EQ(again, nullptr);
    }
    expect_nothing_changed();
}

struct Option {
    const char* name;
    void (*set)(sh_device_options&, sh_host_options&);
};
void PrintTo(const Option& option, std::ostream* out) { *out << option.name; }

class OptionOutOfRange : public testing::TestWithParam<Option> {};

TEST_P(OptionOutOfRange, is_refused_by_name) {
    for (const bool open : {false, true}) {
        std::unique_ptr<TestDevice> kept = open ? std::make_unique<TestDevice>() : nullptr;
        sh_device_options options = SH_DEVICE_OPTIONS_INIT;
        options.budget_bytes = 64 * kPage;
        sh_host_options host = SH_HOST_OPTIONS_INIT;
        options.host = &host;
        GetParam().set(options, host);
        sh_device* device = nullptr;
        EXPECT_REFUSED(sh_device_open(device_under_test().c_str(), &options, &device), SH_ERROR_INVALID_ARGUMENT,
                       std::string("options.") + GetParam().name);
        EXPECT_EQ(device, nullptr);
        sh_device_close(device);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, OptionOutOfRange,
    testing::Values(
        Option{"host.staging_threads", [](auto&, auto& host) { host.staging_threads = 65; }},
        Option{"host.staging_threads", [](auto&, auto& host) { host.staging_threads = UINT32_MAX; }},
        Option{"host.staging_bytes", [](auto&, auto& host) { host.staging_bytes = (uint64_t(128) << 30) + 1; }},
        Option{"host.staging_bytes", [](auto&, auto& host) { host.staging_bytes = UINT64_MAX; }},
        Option{"page_bytes", [](auto& device, auto&) { device.page_bytes = 3 * kPage; }},
        Option{"page_bytes", [](auto& device, auto&) { device.page_bytes = uint64_t(2) << 30; }},
        Option{"page_bytes", [](auto& device, auto&) { device.page_bytes = uint64_t(1) << 63; }},
        Option{"link_bytes_per_second", [](auto& device, auto&) { device.link_bytes_per_second = 999'999; }},
        Option{"link_bytes_per_second", [](auto& device, auto&) { device.link_bytes_per_second = UINT64_MAX; }}));

TEST(Options, the_largest_of_each_are_taken) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = uint64_t(4) << 30;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
    options.host = &host;
    host.staging_threads = 64;
    host.staging_bytes = uint64_t(128) << 30;
    options.page_bytes = uint64_t(1) << 30;
    options.link_bytes_per_second = 1'000'000'000'000'000;
    sh_device* device = nullptr;
    SUCCEEDS(sh_device_open(device_under_test().c_str(), &options, &device));
    auto caps = sh_sized<sh_device_caps>();
    SUCCEEDS(sh_device_get_caps(device, &caps));
    EXPECT_EQ(caps.staging_threads, 64u);
    EXPECT_EQ(caps.page_bytes, uint64_t(1) << 30);
    sh_device_close(device);
}

// The margin is the reason why there is no budget, so the text names the margin.
TEST(Options, a_margin_that_leaves_nothing_is_told_by_name) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.margin_bytes = UINT64_MAX;
    sh_device* device = nullptr;
    EXPECT_REFUSED(sh_device_open(device_under_test().c_str(), &options, &device), SH_ERROR_BUDGET,
                   "margin_bytes " + std::to_string(UINT64_MAX));
    EXPECT_EQ(device, nullptr);
}

TEST_F(Arguments, speeds_out_of_range_are_refused_by_plans) {
    for (const uint64_t speed : {uint64_t(1), uint64_t(999'999), UINT64_MAX}) {
        sh_plan_options options = SH_PLAN_OPTIONS_INIT;
        options.flags = SH_PLAN_DRY_RUN;
        options.link_bytes_per_second = speed;
        EXPECT_REFUSED(sh_plan(runtime_, &options, nullptr), SH_ERROR_INVALID_ARGUMENT,
                       "options.link_bytes_per_second");
    }
    expect_nothing_changed();
}

}  // namespace
}  // namespace stagehand::test
