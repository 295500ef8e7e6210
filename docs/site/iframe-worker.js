// Search runs in a worker, which browsers do not start for pages opened from disk: run its script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.loaded = new Promise((resolve, reject) => {
        this.frame.addEventListener("load", () => {
          const scope = this.frame.contentWindow;
          scope.postMessage = (data) => this.receive(data);
          const script = scope.document.createElement("script");
          script.src = new URL(url, location.href).href;
          script.addEventListener("load", resolve);
          script.addEventListener("error", reject);
          scope.document.body.append(script);
        });
      });
      document.documentElement.append(this.frame);
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }

    async postMessage(data) {
      await this.loaded;
      const scope = this.frame.contentWindow;
      scope.dispatchEvent(new scope.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
