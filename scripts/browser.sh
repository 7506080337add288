#!/bin/sh
# The tests open reports in Chromium. Gets it where that takes no question (20 seconds on Debian); else those tests are
# skipped.
for name in chromium chromium-browser google-chrome; do
  command -v $name >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing chromium"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null && exit 0
fi
echo "There is no Chromium: the tests that open a report in a browser are skipped." >&2
