#include "chart.h"

#include <fmt/format.h>

namespace stagehand::cli {

namespace {

// Plain colours come first, because many programs that show SVG support neither variables nor media queries.
constexpr std::string_view common_style = R"(
svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
.paper { fill: #ffffff; }
.title { fill: #1f2430; font-size: 19px; font-weight: 600; }
.subtitle, .tick, .tick-y, .legend { fill: #6b7280; font-size: 13px; }
.tick { text-anchor: middle; }
.tick-y { text-anchor: end; }
.grid { stroke: #e6e8ec; stroke-width: 1; }
.axis { stroke: #6b7280; stroke-width: 1; }
)";
constexpr std::string_view common_dark_style = R"(  .paper { fill: #14171d; }
  .title { fill: #e8eaed; }
  .subtitle, .tick, .tick-y, .legend { fill: #9aa3b2; }
  .grid { stroke: #2a303a; }
  .axis { stroke: #9aa3b2; })";

}  // namespace

Chart::Chart(double height, double bottom, Point ends, std::string_view style, std::string_view dark_style,
             const std::string& description, const std::string& title, const std::string& subtitle)
    : height_(height), bottom_(bottom), ends_(ends) {
    body_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>{3}{4}"
        "@media (prefers-color-scheme: dark) {{\n{5}{6}}}\n</style>\n",
        width, height, markup(description), common_style, style, common_dark_style, dark_style);
    rectangle({0, 0}, width, height, "paper");
    text({20, 34}, "title", title);
    text({20, 56}, "subtitle", subtitle);
}

void Chart::row(double value, std::string_view content) {
    level(value, value == 0 ? "axis" : "grid");
    text({left - 10, y(value) + 4.5}, "tick-y", content);
}

void Chart::legend(const std::vector<ChartEntry>& entries) {
    const auto room = [](const ChartEntry& entry) { return 48 + 7.5 * static_cast<double>(entry.name.size()); };
    double at = width - right;
    for (const ChartEntry& entry : entries) at -= room(entry);
    for (const ChartEntry& entry : entries) {
        line({at, top - 22}, {at + 26, top - 22}, entry.style_class);
        text({at + 32, top - 17.5}, "legend", entry.name);
        at += room(entry);
    }
}

void Chart::line(Point from, Point to, std::string_view style_class) {
    body_ += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style_class,
                         from.x, from.y, to.x, to.y);
}

void Chart::shape(std::string_view kind, const std::vector<Point>& points, std::string_view style_class) {
    body_ += fmt::format("<{} class=\"{}\" points=\"", kind, style_class);
    for (const Point& point : points) body_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
    body_ += "\"/>\n";
}

void Chart::rectangle(Point corner, double wide, double high, std::string_view style_class) {
    body_ += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
                         style_class, corner.x, corner.y, wide, high);
}

void Chart::circle(Point centre, double radius, std::string_view style_class, std::string_view tip) {
    body_ += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"><title>{}</title></circle>\n",
                         style_class, centre.x, centre.y, radius, markup(tip));
}

void Chart::text(Point at, std::string_view style_class, std::string_view content) {
    body_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style_class, at.x, at.y,
                         markup(content));
}

std::string markup(std::string_view text) {
    std::string result;
    for (const char character : text) {
        if (constexpr std::string_view special = "&<>\"'"; special.find(character) != std::string_view::npos)
            result += fmt::format("&#{};", static_cast<int>(character));
        else
            result += static_cast<unsigned char>(character) < 0x20 && character != '\n' && character != '\t'
                          ? ' '
                          : character;
    }
    return result;
}

}  // namespace stagehand::cli
