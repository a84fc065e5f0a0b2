// The page in a frame of a notebook, its state tied to the widget's: what either changes, the other is told.

const STATE = ["step", "layer", "head", "selected"];

export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    // It may run its script and save files; it reaches neither the notebook nor the network.
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    frame.title = model.get("title");
    frame.style.cssText = `width: 100%; height: ${Number(model.get("height"))}px; border: 0`;
    frame.srcdoc = model.get("html");

    const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
    const tell = () => {
      const state = Object.fromEntries(STATE.map((name) => [name, model.get(name)]));
      frame.contentWindow?.postMessage({ sinkscope: state }, "*");
    };
    // The page first tells where it opened. What was asked for goes before that, and so does all, once it is shown again.
    let kept = model.get("opened") ? STATE : model.get("given");
    const hear = (event) => {
      const said = event.source === frame.contentWindow && event.data?.sinkscope;
      if (!said) return;
      const taken = STATE.filter((name) => name in said && !kept.includes(name) && !same(model.get(name), said[name]));
      const asked = kept.length > 0;
      kept = [];
      for (const name of taken) model.set(name, said[name]);
      model.set("opened", true);
      model.save_changes();
      if (asked) tell();
    };
    const changed = STATE.map((name) => `change:${name}`).join(" ");
    window.addEventListener("message", hear);
    model.on(changed, tell);
    el.append(frame);
    return () => {
      window.removeEventListener("message", hear);
      model.off(changed, tell);
    };
  },
};
