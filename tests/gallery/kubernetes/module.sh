# kubernetes_module: sets `module` to a Go module with the Go files of the script's folder, and `version` to the version
# of Kubernetes, whose packages it can import. Kubernetes' own go.mod pins all other modules. It expects the modules that
# are published from Kubernetes' repository in neighboring folders. Their releases, with the sums in kubernetes.sum,
# replace these.
version=1.37.2

kubernetes_module() {
    go_module k8s.io/kubernetes "v$version" h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE=
    local kubernetes=$module
    module=$work/$folder
    mkdir "$module"
    cp "$gallery/$folder"/*.go "$module"
    local release=v0.${version#1.}
    sed -e 's/^module .*/module gallery/' -e "s/^\tk8s.io\/klog\/v2 .*/&\n\tk8s.io\/kubernetes v$version/" \
        -e "s/ v0\.0\.0$/ $release/" -e "s/^\t\(k8s.io\/[a-z-]*\) => .*/\t\1 => \1 $release/" "$kubernetes/go.mod" \
        >"$module/go.mod"
    cat "$kubernetes/go.sum" "$gallery/kubernetes/kubernetes.sum" >"$module/go.sum"
    # Missing sums are errors.
    export GOFLAGS=-mod=readonly
}
