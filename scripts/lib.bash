# Shared by the scripts beside it: find a Python, make a virtual environment once. Sourced under `set -euo pipefail`, not run.
#
# An environment counts as whole only when its stamp says so. The stamp is written last, and holds a hash of everything the
# environment was made from; a set-up that was interrupted, or made from an older pyproject.toml, is thrown away and redone.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root
readonly first_minor=11
last_minor=12 # Python 3.x: TensorFlow 2.18, which most environments hold, ends at 3.12
readonly marker=made-by-dlio-bench stamp=dlio-bench-stamp

# Other Pythons' settings would put other packages before the ones installed here, or install them elsewhere.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1

# Another environment that is active must not lend its mpirun. A site's MPI, from a module or /usr, stays on the PATH and
# comes before the one installed here, as anywhere dlio-bench runs.
if [[ -n ${VIRTUAL_ENV:-} ]]; then
  PATH=:$PATH:
  PATH=${PATH//":$VIRTUAL_ENV/bin:"/:}
  PATH=${PATH#:} PATH=${PATH%:}
  unset VIRTUAL_ENV
fi

say() { printf '%s\n' "$*" >&2; }

# Status 4 is dlio-bench's own for "the environment failed".
die() {
  say "$(basename -- "$0"): $*"
  exit 4
}

# Prints "3.11.7" where the command $1 is a Python that starts; a pyenv shim with no version chosen is not.
python_version() {
  "$1" -I -c 'import platform; print(platform.python_version())' 2>/dev/null
}

is_supported() {
  [[ $1 =~ ^3\.([0-9]+)(\.|$) ]] && ((BASH_REMATCH[1] >= first_minor && BASH_REMATCH[1] <= last_minor))
}

# Prints the command of the first Python that can make an environment: $PYTHON, or one found on PATH.
find_python() {
  local candidate version found="" lacks_venv="" candidates=(python3.12 python3.11 python3.13 python3)
  [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if ! version=$(python_version "$candidate"); then
      continue
    elif ! is_supported "$version"; then
      found+=", $candidate is $version"
    elif ! "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null; then
      lacks_venv=${lacks_venv:-$version}
      found+=", $candidate is $version without venv"
    else
      printf '%s\n' "$candidate"
      return
    fi
  done
  local needed="Python 3.$first_minor to 3.$last_minor with venv is needed"
  found=${found#, }
  if [[ -n $lacks_venv ]]; then
    die "$needed; found: $found. Install the missing part with 'apt-get install python${lacks_venv%.*}-venv'."
  elif [[ -n ${PYTHON:-} ]]; then
    die "$needed, and PYTHON=$PYTHON is not one (${found:-it does not start}). Unset PYTHON, or set it to the path of one."
  fi
  die "$needed; found: ${found:-none}. Install one with 'apt-get install python3.$first_minor-venv' (Debian 12) or" \
    "'apt-get install python3.12-venv' (Ubuntu 24.04), or set PYTHON to the path of one."
}

need_space() { # need_space FOLDER MEGABYTES
  local free
  free=$(df -Pm -- "$1" | awk 'NR == 2 {print $4}')
  ((free >= $2)) || die "$1 has $free MB free and the environment needs $2 MB. Free some space, or clone to another disk."
}

# What the environment in folder $1 with extras $2 and Python version $3 is made from. The folder counts, because
# console scripts hold its absolute path: a clone that was moved sets up anew.
fingerprint() {
  { printf '%s\n' "$1" "$2" "$3"; cat -- "$root/pyproject.toml" "$root/constraints.txt"; } | sha256sum | cut -d' ' -f1
}

is_whole() { # is_whole FOLDER EXTRAS
  local version
  [[ -f $1/$stamp ]] || return
  # Without PYTHON, whatever Python the environment was made with is right.
  version=$(python_version "${PYTHON:-$1/bin/python}") && python_version "$1/bin/python" >/dev/null || return
  [[ $(<"$1/$stamp") == "$(fingerprint "$1" "$2" "$version")" ]]
}

# Ends with what a failed pip run most likely lacked, from its log $1.
explain_pip_failure() {
  local whole="The whole log: $1"
  if grep -qiE 'no space left on device|disk quota exceeded' -- "$1"; then
    die "the disk is full. Free some space and repeat the command. $whole"
  elif grep -qiE 'NewConnectionError|ConnectionError|ConnectTimeout|ReadTimeout|name resolution|ProxyError|SSLError' -- "$1"; then
    die "pip did not reach its package index. Check the network; behind a proxy set HTTPS_PROXY, with an index of your own" \
      "'pip config set global.index-url URL'. Then repeat the command. $whole"
  fi
  grep -E '^ *(ERROR|error)\b' -- "$1" | tail -n 5 >&2 || tail -n 15 -- "$1" >&2
  if grep -qiE '(gcc|g\+\+|cc|c\+\+).? failed|unable to find .*compiler|No CMAKE_CXX_COMPILER' -- "$1"; then
    die "a package had to be compiled, which needs a C++ compiler: 'apt-get install g++'. $whole"
  fi
  die "pip failed. $whole"
}

# make_venv NAME EXTRAS MEGABYTES: the environment in the clone's folder NAME, made if it is not whole.
make_venv() {
  local folder=$root/$1 extras=$2 log=$root/build/$1.log
  is_whole "$folder" "$extras" && return
  mkdir -p -- "$root/build"
  ( # one set-up at a time in a clone; a subshell, so that the lock ends with it and no started program inherits it
    exec 9>"$root/build/setup.lock"
    flock -n 9 || { say "Waiting for another set-up in this clone ..." && flock 9; }
    if is_whole "$folder" "$extras"; then exit; fi
    if [[ -e $folder && ! -f $folder/$marker ]]; then
      die "$folder exists and was not made by this script, so it is left alone. Move it away and repeat the command."
    fi
    python=$(find_python)
    version=$(python_version "$python")
    rm -rf -- "$folder"
    need_space "$root" "$3"
    say "Setting up $1 with Python $version (once; log: $log) ..."
    mkdir -- "$folder"
    : >"$folder/$marker"
    "$python" -I -m venv "$folder" >"$log" 2>&1 || explain_pip_failure "$log"
    cd -- "$root" || exit # an extra cannot be asked for by a path with spaces
    "$folder/bin/python" -I -m pip install --progress-bar off --constraint constraints.txt --editable ".[$extras]" >>"$log" 2>&1 ||
      explain_pip_failure "$log"
    fingerprint "$folder" "$extras" "$version" >"$folder/$stamp.part"
    mv -- "$folder/$stamp.part" "$folder/$stamp"
  )
}

# The tests' environment has TensorFlow, whose own readers are the proof that the files written here are right.
make_test_venv() { make_venv .venv-test dev,mpi,tensorflow 3000; }
