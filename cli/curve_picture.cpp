// Draws the curve of time against budget as an SVG picture.
#include "curve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "model/quantity.h"
#include "svg.h"
#include "units.h"

namespace stagehand::cli {

namespace {

constexpr double width = 880;
constexpr double height = 540;
constexpr double left = 84;
constexpr double right = 36;
constexpr double top = 104;
constexpr double bottom = 92;

// Plain colours come first, because many programs that show SVG support neither variables nor media queries.
constexpr std::string_view style = R"(
svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.paper { fill: #ffffff; }
.none { fill: #f1f3f5; }
.title { fill: #1f2430; font-size: 19px; font-weight: 600; }
.name-x, .name-y { fill: #1f2430; font-size: 13px; }
.mark, .mark-end { fill: #1f2430; font-size: 13px; font-weight: 600; }
.subtitle, .tick, .tick-y, .legend { fill: #6b7280; font-size: 13px; }
.share, .none-text { fill: #6b7280; font-size: 11px; }
.tick, .share, .name-x, .none-text { text-anchor: middle; }
.tick-y, .mark-end { text-anchor: end; }
.grid { stroke: #e6e8ec; stroke-width: 1; }
.axis { stroke: #6b7280; stroke-width: 1; }
.plan { fill: none; stroke: #2563eb; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
.bound { fill: none; stroke: #d97706; stroke-width: 2; stroke-dasharray: 7 5; }
.compute { fill: none; stroke: #059669; stroke-width: 2; stroke-dasharray: 2 5; stroke-linecap: round; }
.all { fill: none; stroke: #6b7280; stroke-width: 1.5; stroke-dasharray: 2 5; stroke-linecap: round; }
.gap { fill: #2563eb; opacity: 0.09; }
.dot { fill: #2563eb; stroke: #ffffff; stroke-width: 1.2; }
.chosen { fill: #ffffff; stroke: #2563eb; stroke-width: 3; }
.drop { stroke: #2563eb; stroke-width: 1; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14171d; }
  .none { fill: #1c2129; }
  .title, .name-x, .name-y, .mark, .mark-end { fill: #e8eaed; }
  .subtitle, .tick, .tick-y, .legend, .share, .none-text { fill: #9aa3b2; }
  .grid { stroke: #2a303a; }
  .axis, .all { stroke: #9aa3b2; }
  .plan, .drop { stroke: #7aa8ff; }
  .bound { stroke: #f5b04c; }
  .compute { stroke: #4ade9f; }
  .gap, .dot { fill: #7aa8ff; }
  .dot { stroke: #14171d; }
  .chosen { fill: #14171d; stroke: #7aa8ff; }
}
)";

// The step of an axis: 1, 2 or 5 times a power of ten, so that about `count` steps make `range`.
double tick_step(double range, int count) {
    const double raw = range / count;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0})
        if (raw <= factor * power) return factor * power;
    return 10 * power;
}

struct Unit {
    double size;
    std::string_view name;
};

// The unit in which most numbers of the axis are small.
Unit unit_for(double largest, double base, std::array<std::string_view, 5> names) {
    Unit unit = {1, names[0]};
    for (std::size_t i = 1; i < names.size() && largest / unit.size >= 2 * base; ++i)
        unit = {unit.size * base, names[i]};
    return unit;
}

// The place of a budget and a time on the picture.
class Axes {
public:
    Axes(double budget_end, double time_end) : budget_end_(budget_end), time_end_(time_end) {}

    double budget_end() const { return budget_end_; }
    double time_end() const { return time_end_; }
    double x(double budget) const { return left + (width - left - right) * budget / budget_end_; }
    double y(double ms) const { return height - bottom - (height - top - bottom) * ms / time_end_; }
    Point at(const CurvePoint& point, double ms) const { return {x(static_cast<double>(point.budget_bytes)), y(ms)}; }

private:
    double budget_end_;
    double time_end_;
};

Axes axes_of(const Curve& curve) {
    double budget = static_cast<double>(curve.model_bytes);
    double time = std::max({curve.copy_all_ms, curve.compute_ms, curve.chosen.step_ms});
    for (const CurvePoint& point : curve.points) {
        budget = std::max(budget, static_cast<double>(point.budget_bytes));
        time = std::max(time, point.step_ms);
    }
    return {std::max(budget, 1.0), std::max(time * 1.08, 1e-6)};
}

void draw_axes(SvgPicture& picture, const Curve& curve, const Axes& axes) {
    const Unit bytes = unit_for(axes.budget_end(), 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
    const Unit time = unit_for(axes.time_end() * 1e6, 1000, {"ns", "µs", "ms", "s", "ks"});
    const double base = height - bottom;

    const double time_step = tick_step(axes.time_end() * 1e6 / time.size, 6);
    for (double tick = 0; tick * time.size / 1e6 <= axes.time_end(); tick += time_step) {
        const double y = axes.y(tick * time.size / 1e6);
        picture.line({left, y}, {width - right, y}, tick == 0 ? "axis" : "grid");
        picture.text({left - 10, y + 4.5}, "tick-y", fmt::format("{:.4g}", tick));
    }
    const double budget_step = tick_step(axes.budget_end() / bytes.size, 9);
    const auto model = static_cast<double>(curve.model_bytes);
    for (double tick = 0; tick * bytes.size <= axes.budget_end(); tick += budget_step) {
        const double x = axes.x(tick * bytes.size);
        picture.line({x, base}, {x, base + 5}, "axis");
        picture.text({x, base + 21}, "tick", fmt::format("{:.4g}", tick));
        if (tick > 0 && model > 0)
            picture.text({x, base + 36}, "share", fmt::format("{:.0f} %", 100 * tick * bytes.size / model));
    }
    picture.text({(left + width - right) / 2, base + 62}, "name-x",
                 fmt::format("device memory for weights, {} and share of the model", bytes.name));
    picture.text({20, top - 18}, "name-y", fmt::format("time of a step, {}", time.name));
}

void draw_legend(SvgPicture& picture, const Curve& curve) {
    struct Entry {
        std::string_view style_class;
        std::string_view name;
        double room;
    };
    const double y = top - 22;
    double x = width - right;
    std::vector<Entry> entries = {{"plan", "plan", 84}, {"bound", "max(compute, (W − M) / link)", 250}};
    if (curve.compute_ms > 0) entries.push_back({"compute", "compute", 112});
    entries.push_back({"all", "all of W copied", 132});
    for (const Entry& entry : entries) x -= entry.room;
    for (const Entry& entry : entries) {
        picture.line({x, y}, {x + 26, y}, entry.style_class);
        picture.text({x + 32, y + 4.5}, "legend", entry.name);
        x += entry.room;
    }
}

void draw_lines(SvgPicture& picture, const Curve& curve, const Axes& axes) {
    picture.line({left, axes.y(curve.copy_all_ms)}, {width - right, axes.y(curve.copy_all_ms)}, "all");
    if (curve.compute_ms > 0)
        picture.line({left, axes.y(curve.compute_ms)}, {width - right, axes.y(curve.compute_ms)}, "compute");
    std::vector<Point> plan;
    std::vector<Point> bound;
    for (const CurvePoint& point : curve.points) {
        plan.push_back(axes.at(point, point.step_ms));
        bound.push_back(axes.at(point, point.bound_ms));
    }
    // The area between the plan and the bound.
    std::vector<Point> gap = plan;
    gap.insert(gap.end(), bound.rbegin(), bound.rend());
    picture.polygon(gap, "gap");
    picture.polyline(bound, "bound");
    picture.polyline(plan, "plan");
    for (const CurvePoint& point : curve.points) {
        picture.circle(axes.at(point, point.step_ms), 3.2, "dot",
                       fmt::format("{}: {} a step, {} copied", model::format_bytes(point.budget_bytes),
                                   time_text(point.step_ms), model::format_bytes(point.bytes_per_step)));
    }
}

void draw_chosen(SvgPicture& picture, const Curve& curve, const Axes& axes) {
    const Point at = axes.at(curve.chosen, curve.chosen.step_ms);
    picture.line(at, {at.x, height - bottom}, "drop");
    picture.circle(at, 6, "chosen");
    const std::string label =
        fmt::format("{} at {}", time_text(curve.chosen.step_ms), model::format_bytes(curve.chosen.budget_bytes));
    // The label is above the point and to its right, where a falling curve leaves room; near the edge it is to the
    // left.
    const bool end = at.x > width - right - 220;
    picture.text({at.x + (end ? -10 : 12), std::max(at.y - 12, top + 12)}, end ? "mark-end" : "mark", label);
}

}  // namespace

std::string curve_picture(const Curve& curve) {
    const Axes axes = axes_of(curve);
    SvgPicture picture(width, height, fmt::format("{}: time of a step against device memory", curve.title), style);
    picture.rectangle({0, 0}, width, height, "paper");
    picture.text({20, 34}, "title", curve.title);
    picture.text({20, 56}, "subtitle", curve.subtitle);
    const double smallest = axes.x(static_cast<double>(curve.smallest_budget_bytes));
    picture.rectangle({left, top}, smallest - left, height - top - bottom, "none");
    draw_axes(picture, curve, axes);
    if (smallest - left > 56) picture.text({(left + smallest) / 2, height - bottom - 10}, "none-text", "no plan");
    draw_legend(picture, curve);
    draw_lines(picture, curve, axes);
    draw_chosen(picture, curve, axes);
    return picture.finish();
}

}  // namespace stagehand::cli
