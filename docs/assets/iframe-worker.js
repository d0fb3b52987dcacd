// Browsers start no workers for pages that are opened as files. The search of the site needs one, so that such pages get
// this one, which runs its script in a hidden frame. The theme looks for "iframe-worker" in the name of this file.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === inner) {
          const message = new MessageEvent("message", { data: event.data });
          this.dispatchEvent(message);
          this.onmessage?.(message);
        }
      });
      this.loaded = new Promise((resolve) => (this.frame.onload = resolve));
      inner.document.open();
      inner.document.write(
        `<script>
           postMessage = (data) => parent.postMessage(data, "*");
           importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
             const script = document.createElement("script");
             script.src = url;
             script.onload = resolve;
             document.body.append(script);
           })), Promise.resolve());
         </script>
         <script src="${url}"></script>`,
      );
      inner.document.close();
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
